// Any bytes as a .npy file: a clear error or an index that lies inside the file.
#include "file_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tilewise::fuzz::read_as_file({reinterpret_cast<const std::byte*>(data), size},
                               tilewise::cli::npy_header_bytes, tilewise::cli::index_npy);
  return 0;
}
