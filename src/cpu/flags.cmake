# Compiler options of the files that hold one instruction set each. fp-contract is off so that a
# multiply and an add stay two operations where the kernels write two: the bits of a result must
# not depend on what a compiler chose to fuse.
set(tilewise_isa_options -ffp-contract=off)
# The intrinsics of GCC 12 read their own undefined vectors: a false alarm.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND tilewise_isa_options -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
set_source_files_properties(src/cpu/isa_scalar.cc src/cpu/isa_neon.cc PROPERTIES
  COMPILE_OPTIONS "${tilewise_isa_options}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(tilewise_neonbf16_options -march=armv8.2-a+bf16)
endif()
set_source_files_properties(src/cpu/isa_neonbf16.cc PROPERTIES
  COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_neonbf16_options}")
# The file of an instruction set of another kind of processor is empty.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(tilewise_avx2_options -mavx2 -mfma -mf16c -mbmi2)
  set_source_files_properties(src/cpu/isa_avx2.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx2_options}")
  set(tilewise_avx512_options -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2)
  set_source_files_properties(src/cpu/isa_amx.cc src/cpu/isa_avx512bf16.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx512_options};-mavx512bf16")
  set_source_files_properties(src/cpu/isa_avx512.cc PROPERTIES
    COMPILE_OPTIONS "${tilewise_isa_options};${tilewise_avx512_options}")
endif()
