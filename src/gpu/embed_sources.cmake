# cmake -DOUTPUT=x.cc -DROOT=src -DFILES=a,b -P embed_sources.cmake
# Writes the kernel sources as C++ strings with one SHA-256 over names and texts, which is part of
# every cache key: a library never loads a cubin that other sources made.
string(REPLACE "," ";" FILES "${FILES}")
set(all "")
set(entries "")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" text)
  string(REGEX REPLACE "^gpu/" "" name "${file}")
  string(APPEND all "${name}\n${text}")
  string(APPEND entries "    {\"${name}\", R\"TILEWISE(${text})TILEWISE\"},\n")
endforeach()
string(SHA256 digest "${all}")
file(WRITE "${OUTPUT}.new" "// Written by embed_sources.cmake.
#include \"module.h\"

namespace tilewise::gpu {
namespace {

constexpr KernelSource kSources[] = {
${entries}};

}  // namespace

std::span<const KernelSource> kernel_sources() { return kSources; }
const char* kernel_sources_sha256() { return \"${digest}\"; }

}  // namespace tilewise::gpu
")
file(COPY_FILE "${OUTPUT}.new" "${OUTPUT}" ONLY_IF_DIFFERENT)
