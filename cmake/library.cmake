# tilewise_objects and the library made of them.
find_package(Threads REQUIRED)

configure_file(cmake/version.h.in "${PROJECT_BINARY_DIR}/include/tilewise/version.h" @ONLY)

tilewise_glob(tilewise_sources src/*.cc src/cpu/*.cc src/reference/*.cc)
if(NOT EXISTS "${PROJECT_SOURCE_DIR}/src/cpu/standard.cc")
  list(APPEND tilewise_sources cmake/without_cpu.cc)  # until src/cpu is whole
endif()
add_library(tilewise_objects OBJECT ${tilewise_sources})
tilewise_compiled(tilewise_objects)
target_link_libraries(tilewise_objects PUBLIC Threads::Threads)
# Compiler options of the files that hold one instruction set each.
include(src/cpu/flags.cmake OPTIONAL)

# The GPU backend joins the library when src/gpu/backend.cc answers for it.
set(tilewise_objects_of_library $<TARGET_OBJECTS:tilewise_objects>)
if(EXISTS "${PROJECT_SOURCE_DIR}/src/gpu/backend.cc")
  add_subdirectory(src/gpu)
  list(APPEND tilewise_objects_of_library $<TARGET_OBJECTS:tilewise_gpu>)
  target_link_libraries(tilewise_objects PUBLIC ${CMAKE_DL_LIBS})
endif()

add_library(tilewise ${tilewise_objects_of_library})
add_library(tilewise::tilewise ALIAS tilewise)
target_link_libraries(tilewise PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_compile_features(tilewise PUBLIC cxx_std_20)
target_include_directories(tilewise PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Before 1.0 a minor version may change the ABI.
set_target_properties(tilewise PROPERTIES
  LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
get_target_property(type tilewise TYPE)
if(type STREQUAL SHARED_LIBRARY)
  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_options(tilewise PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(tilewise PROPERTIES LINK_DEPENDS "${exports}")
  # A sanitizer's symbols come from the program.
  if(NOT TILEWISE_SANITIZE)
    target_link_options(tilewise PRIVATE "LINKER:--no-undefined")
  endif()
endif()
