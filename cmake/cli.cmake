# The program build/bin/tilewise. The library is inside, so the file runs wherever it is copied.
# tilewise_cli_objects, everything but main(), is there for the tests of the command line too.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

tilewise_glob(cli_sources cli/*.cc)
list(REMOVE_ITEM cli_sources cli/main.cc)
if(cli_sources AND EXISTS "${PROJECT_SOURCE_DIR}/cli/main.cc")
  add_executable(tilewise_cli cli/main.cc)
  tilewise_compiled(tilewise_cli)
  target_link_libraries(tilewise_cli PRIVATE tilewise_cli_objects tilewise_case tilewise_inside)
  set_target_properties(tilewise_cli PROPERTIES
    OUTPUT_NAME tilewise
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

  add_library(tilewise_cli_objects OBJECT EXCLUDE_FROM_ALL ${cli_sources})
  tilewise_compiled(tilewise_cli_objects)
  target_link_libraries(tilewise_cli_objects PUBLIC CLI11::CLI11 fmt::fmt
                                                    nlohmann_json::nlohmann_json)
  tilewise_precompiled(tilewise_cli_objects <fmt/format.h>)
  # Options, files and text: -O2 compiles half as long again and gains nothing.
  foreach(target tilewise_cli tilewise_cli_objects)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endif()
