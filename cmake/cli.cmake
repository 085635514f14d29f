# The program build/bin/tilewise. The library is inside, so the file runs wherever it is copied.
# tilewise_cli_objects, everything but main(), is there for the tests of the command line too.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

tilewise_glob(cli_sources cli/*.cc)
list(REMOVE_ITEM cli_sources cli/main.cc)
if(cli_sources AND EXISTS "${PROJECT_SOURCE_DIR}/cli/main.cc")
  add_library(tilewise_cli_objects OBJECT EXCLUDE_FROM_ALL ${cli_sources})
  tilewise_compiled(tilewise_cli_objects)
  target_link_libraries(tilewise_cli_objects PUBLIC CLI11::CLI11 fmt::fmt
                                                    nlohmann_json::nlohmann_json)

  add_executable(tilewise_cli cli/main.cc $<TARGET_OBJECTS:tilewise_cli_objects>
                              ${tilewise_objects_of_library})
  tilewise_compiled(tilewise_cli)
  target_link_libraries(tilewise_cli PRIVATE
    tilewise_case Threads::Threads ${CMAKE_DL_LIBS}
    CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
  set_target_properties(tilewise_cli PROPERTIES
    OUTPUT_NAME tilewise
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endif()
