// What npy_fuzz and safetensors_fuzz share: bytes are taken for a file, indexed as the command line
// does it, and every tensor of an accepted index must lie inside the file.
#pragma once

#include <cstdlib>
#include <span>

#include "cli/tensor_file.h"

namespace tilewise::fuzz {

using HeaderBytes = uint64_t (*)(std::string_view, std::span<const std::byte>, uint64_t);
using Index = std::vector<cli::TensorEntry> (*)(std::string_view, std::span<const std::byte>,
                                                uint64_t);

inline void expect(bool holds) {
  if (!holds) std::abort();
}

inline void read_as_file(std::span<const std::byte> file, HeaderBytes header_bytes, Index index) {
  constexpr size_t kStart = 12;
  try {
    const uint64_t length =
        header_bytes("fuzz", file.first(std::min(kStart, file.size())), file.size());
    expect(length <= file.size());
    for (const cli::TensorEntry& tensor : index("fuzz", file.first(length), file.size())) {
      expect(tensor.offset <= file.size() && tensor.bytes <= file.size() - tensor.offset);
      expect(tensor.shape.size() <= cli::kMaxFileDims);
      if (tensor.dtype == DType::none) continue;
      const auto element = static_cast<uint64_t>(size_of(tensor.dtype));
      expect(cli::checked_bytes("fuzz", tensor.shape, element) == tensor.bytes);
    }
  } catch (const cli::InputError& error) {  // one line, not empty
    const std::string_view text = error.what();
    expect(!text.empty() && text.find('\n') == std::string_view::npos);
  }
}

}  // namespace tilewise::fuzz
