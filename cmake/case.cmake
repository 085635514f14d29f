# tilewise_case: the Case text, its tensors and their verification. once: one call of a Case, for
# tools that count what it moves.
tilewise_glob(case_sources src/case/*.cc)
if(case_sources)
  add_library(tilewise_case STATIC EXCLUDE_FROM_ALL ${case_sources})
  tilewise_compiled(tilewise_case)
  tilewise_precompiled(tilewise_case REUSE_FROM tilewise_objects)

  add_executable(once EXCLUDE_FROM_ALL bench/once.cc)
  tilewise_compiled(once)
  target_link_libraries(once PRIVATE tilewise_case tilewise_inside)
  set_target_properties(once PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
endif()
