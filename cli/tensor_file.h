// Tensor files: strict readers and writers of .safetensors and .npy.
//
// A file is hostile until its header has been checked: every length, product and offset against the
// real size of the file, before anything of that size is allocated. Memory stays below the file's
// size plus a constant. The index functions look at bytes only, so that a fuzzer can call them;
// errors are one line: file, tensor, what was found, what was expected. Format limits: docs/cli.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

// Bad input of any kind: exit status 2.
class InputError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class FileFormat { safetensors, npy };

// By the name's ending; throws InputError that lists the endings.
FileFormat format_of(const std::string& path);

inline constexpr size_t kMaxFileDims = 8;

// One tensor of a file.
struct TensorEntry {
  std::string name;           // "" in .npy
  std::string spelling;       // the dtype as the file spells it: "BF16", "<f4"
  DType dtype = DType::none;  // none: a type that Tilewise does not compute with
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t bytes = 0;
};

// The bytes of the header of a file of `file_bytes`, whose first bytes (12, or all if fewer) are
// `start`: prefix and text together. Throws InputError when it cannot be so long.
uint64_t safetensors_header_bytes(std::string_view file, std::span<const std::byte> start,
                                  uint64_t file_bytes);
uint64_t npy_header_bytes(std::string_view file, std::span<const std::byte> start,
                          uint64_t file_bytes);

// What the header says, checked against the size of the file. `header` is exactly as long as the
// function above says. `file` appears in messages only.
std::vector<TensorEntry> index_safetensors(std::string_view file, std::span<const std::byte> header,
                                           uint64_t file_bytes);
std::vector<TensorEntry> index_npy(std::string_view file, std::span<const std::byte> header,
                                   uint64_t file_bytes);

// Bytes of `shape` elements of `element_bytes`; throws InputError on overflow.
uint64_t checked_bytes(std::string_view where, std::span<const int64_t> shape,
                       uint64_t element_bytes);

// A tensor in memory of its own, 64-byte aligned, contiguous.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(std::string name, DType dtype, std::vector<int64_t> shape);  // zeros

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  uint64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_.get(); }
  std::string shape_text() const;  // "[1, 777, 9, 64]"

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::string name_;
  DType dtype_ = DType::none;
  std::vector<int64_t> shape_;
  uint64_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

std::string shape_text(std::span<const int64_t> shape);

// An open file with a checked index.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;  // null: not there
  // Reads the named tensor; throws InputError when it is missing or of a type that is not allowed.
  HostTensor read(std::string_view name) const;

 private:
  void read_bytes(uint64_t offset, std::span<std::byte> into) const;
  std::string path_;
  int descriptor_ = -1;
  std::vector<TensorEntry> tensors_;
};

// Writers: to a temporary name beside `path`, synced, then renamed, so that a reader sees the whole
// file or none of it. Throw InputError when the place cannot be written; nothing is left then.
void write_safetensors(const std::string& path, std::span<const HostTensor* const> tensors,
                       const std::map<std::string, std::string>& metadata);
void write_npy(const std::string& path, const HostTensor& tensor);
// Throws InputError when `path` could not be written: asked before long work starts.
void check_writable(const std::string& path);

}  // namespace tilewise::cli
