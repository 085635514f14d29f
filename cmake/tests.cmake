# One GoogleTest program for each folder of tests/ that has *_test.cc files, with every .cc of that
# folder in it; every *_test.sh and *_test.py; and tests/package/run.sh. See docs/testing.md.
find_package(GTest REQUIRED)
find_package(rapidcheck QUIET)

file(GLOB test_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE "${PROJECT_SOURCE_DIR}"
     tests/*)
# tests/gpu has programs of its own, with its own CMakeLists.txt.
list(REMOVE_ITEM test_folders tests/gpu)
add_subdirectory(tests/gpu)
foreach(folder IN LISTS test_folders)
  get_filename_component(name "${folder}" NAME)
  tilewise_glob(with_tests ${folder}/*_test.cc)
  if(with_tests AND (TARGET tilewise_cli OR NOT name STREQUAL "cli"))
    tilewise_glob(sources ${folder}/*.cc)
    if(CMAKE_CROSSCOMPILING)  # there is no RapidCheck for the other processor
      foreach(source IN LISTS sources)
        file(STRINGS "${PROJECT_SOURCE_DIR}/${source}" properties REGEX "<rapidcheck.h>")
        if(properties)
          list(REMOVE_ITEM sources "${source}")
        endif()
      endforeach()
    endif()
    set(program ${name}_test)
    add_executable(${program} ${sources})
    tilewise_compiled(${program})
    target_compile_options(${program} PRIVATE $<$<CONFIG:Release>:-O1>)  # compiles faster
    target_link_libraries(${program} PRIVATE tilewise_case tilewise_inside GTest::gtest_main)
    if(TARGET rapidcheck)
      target_link_libraries(${program} PRIVATE rapidcheck)
    endif()
    if(name STREQUAL "cli")
      target_link_libraries(${program} PRIVATE tilewise_cli_objects)
      target_compile_definitions(${program} PRIVATE TILEWISE_PROGRAM="$<TARGET_FILE:tilewise_cli>")
      add_dependencies(${program} tilewise_cli)
    endif()
    target_compile_definitions(${program} PRIVATE TILEWISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set_target_properties(${program} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    add_test(NAME ${name} COMMAND ${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    if(name STREQUAL "random")  # the longest: starts first
      set_tests_properties(${name} PROPERTIES COST 1000)
    endif()
  endif()

  tilewise_glob(scripts ${folder}/*_test.sh ${folder}/*_test.py)
  foreach(script IN LISTS scripts)
    get_filename_component(script_name "${script}" NAME_WE)
    if(script MATCHES "\\.py$")
      set(runner python3)
    else()
      set(runner sh)
    endif()
    if(name STREQUAL "bytes" AND TILEWISE_SANITIZE)  # valgrind runs no sanitized program
      continue()
    endif()
    add_test(NAME ${name}/${script_name} COMMAND ${runner} "${PROJECT_SOURCE_DIR}/${script}"
             WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
    if(TARGET tilewise_cli)
      set_tests_properties(${name}/${script_name} PROPERTIES
        ENVIRONMENT "TILEWISE_PROGRAM=$<TARGET_FILE:tilewise_cli>")
    endif()
  endforeach()
endforeach()

# What the compiler made of the kernels: how fast the micro-kernel is, and no vectors spilled in the
# hot loops (bounds are GCC's). Neither says anything of a sanitized build.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT TILEWISE_SANITIZE)
  add_executable(micro_kernel_speed
    tests/speed/micro_kernel_speed.cc tests/speed/avx2.cc tests/speed/avx512.cc
    tests/speed/avx512bf16.cc)
  tilewise_compiled(micro_kernel_speed)
  set_source_files_properties(tests/speed/avx2.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx2_options}")
  set_source_files_properties(tests/speed/avx512.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx512_options}")
  set_source_files_properties(tests/speed/avx512bf16.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx512_options};-mavx512bf16")
  set_target_properties(micro_kernel_speed PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME micro_kernel_speed COMMAND micro_kernel_speed)
  set_tests_properties(micro_kernel_speed PROPERTIES RUN_SERIAL TRUE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_test(NAME cpu_spills COMMAND python3 "${PROJECT_SOURCE_DIR}/tests/cpu/spill_check.py"
             $<TARGET_OBJECTS:tilewise_objects> COMMAND_EXPAND_LISTS)
  endif()
endif()

set_target_properties(once PROPERTIES EXCLUDE_FROM_ALL FALSE)  # tests/bytes runs it

# The sanitizers change what the library needs, so only the plain build is looked at as a package.
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/package/run.sh" AND NOT TILEWISE_SANITIZE)
  add_test(NAME package COMMAND sh "${PROJECT_SOURCE_DIR}/tests/package/run.sh"
           "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}" "${CMAKE_COMMAND}")
endif()
