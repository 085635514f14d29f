# tilewise_objects and the library made of them.
find_package(Threads REQUIRED)

configure_file(cmake/version.h.in "${PROJECT_BINARY_DIR}/include/tilewise/version.h" @ONLY)

# src/cpu first: its instruction sets compile longest.
tilewise_glob(cpu_sources src/cpu/*.cc)
tilewise_glob(other_sources src/*.cc src/cost/*.cc src/reference/*.cc)
add_library(tilewise_objects OBJECT ${cpu_sources} ${other_sources})
tilewise_compiled(tilewise_objects)
tilewise_precompiled(tilewise_objects)
# The files of one instruction set keep away from the standard library.
tilewise_glob(isa_sources src/cpu/isa_*.cc)
set_source_files_properties(${isa_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
# Compiler options of the files that hold one instruction set each.
include(src/cpu/flags.cmake OPTIONAL)

# tilewise_inside: the library's objects, for targets that have it inside.
add_library(tilewise_inside INTERFACE)
target_sources(tilewise_inside INTERFACE $<TARGET_OBJECTS:tilewise_objects>)
target_link_libraries(tilewise_inside INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
# The GPU backend joins when src/gpu/backend.cc answers for it.
if(EXISTS "${PROJECT_SOURCE_DIR}/src/gpu/backend.cc")
  add_subdirectory(src/gpu)
  target_sources(tilewise_inside INTERFACE $<TARGET_OBJECTS:tilewise_gpu>)
endif()

# Not named tilewise: with Ninja that name builds the program, whose file is called so.
add_library(tilewise_library)
add_library(tilewise::tilewise ALIAS tilewise_library)
target_link_libraries(tilewise_library PRIVATE $<BUILD_INTERFACE:tilewise_inside>)
target_compile_features(tilewise_library PUBLIC cxx_std_20)
target_include_directories(tilewise_library PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Before 1.0 a minor version may change the ABI.
set_target_properties(tilewise_library PROPERTIES
  OUTPUT_NAME tilewise
  EXPORT_NAME tilewise
  LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
get_target_property(type tilewise_library TYPE)
if(type STREQUAL SHARED_LIBRARY)
  set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_options(tilewise_library PRIVATE "LINKER:--version-script=${exports}")
  set_target_properties(tilewise_library PROPERTIES LINK_DEPENDS "${exports}")
  # A sanitizer's symbols come from the program.
  if(NOT TILEWISE_SANITIZE)
    target_link_options(tilewise_library PRIVATE "LINKER:--no-undefined")
  endif()
endif()
