# tilewise_case: the Case text, its tensors and their verification.
tilewise_glob(case_sources src/case/*.cc)
if(case_sources)
  add_library(tilewise_case STATIC EXCLUDE_FROM_ALL ${case_sources})
  tilewise_compiled(tilewise_case)
  tilewise_precompiled(tilewise_case REUSE_FROM tilewise_objects)
endif()
