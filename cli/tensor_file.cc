// Opening, reading and writing tensor files; the two formats are in safetensors.cc and npy.cc.
#include "cli/tensor_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cli/atomic_file.h"
#include "cli/json_scanner.h"

namespace tilewise::cli {

namespace {

constexpr std::align_val_t kAlignment{64};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string reason() { return std::strerror(errno); }

}  // namespace

FileFormat format_of(const std::string& path) {
  if (ends_with(path, ".safetensors")) return FileFormat::safetensors;
  if (ends_with(path, ".npy")) return FileFormat::npy;
  throw InputError(path + ": name ends in neither .safetensors nor .npy");
}

uint64_t checked_bytes(std::string_view where, std::span<const int64_t> shape,
                       uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  bool empty = false;
  for (const int64_t size : shape) empty = empty || size == 0;
  for (const int64_t size : shape) {
    if (!empty && __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      throw InputError(std::string(where) + ": shape " + shape_text(shape) +
                       " has more bytes than 2^64");
    }
  }
  return empty ? 0 : bytes;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

void HostTensor::Free::operator()(std::byte* data) const { ::operator delete[](data, kAlignment); }

HostTensor::HostTensor(std::string name, DType dtype, std::vector<int64_t> shape)
    : name_(std::move(name)), dtype_(dtype), shape_(std::move(shape)) {
  bytes_ = checked_bytes(name_, shape_, static_cast<uint64_t>(size_of(dtype)));
  const uint64_t allocated = bytes_ == 0 ? 1 : bytes_;
  data_.reset(static_cast<std::byte*>(::operator new[](allocated, kAlignment)));
  std::memset(data_.get(), 0, allocated);
}

std::string HostTensor::shape_text() const { return cli::shape_text(shape_); }

TensorFile::TensorFile(const std::string& path) : path_(path) {
  const FileFormat format = format_of(path);
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw InputError(path + ": cannot be opened: " + reason());
  try {
    struct stat status = {};
    if (::fstat(descriptor_, &status) != 0) throw InputError(path + ": " + reason());
    if (!S_ISREG(status.st_mode)) throw InputError(path + ": is not a regular file");
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    std::vector<std::byte> header(file_bytes < 12 ? file_bytes : 12);
    read_bytes(0, header);
    const bool npy = format == FileFormat::npy;
    header.resize(npy ? npy_header_bytes(path, header, file_bytes)
                      : safetensors_header_bytes(path, header, file_bytes));
    read_bytes(0, header);
    tensors_ =
        npy ? index_npy(path, header, file_bytes) : index_safetensors(path, header, file_bytes);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

TensorFile::~TensorFile() { ::close(descriptor_); }

void TensorFile::read_bytes(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t count =
        ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw InputError(path_ + ": cannot be read: " + reason());
    if (count == 0) throw InputError(path_ + ": became shorter while it was read");
    into = into.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

const TensorEntry* TensorFile::find(std::string_view name) const {
  for (const TensorEntry& entry : tensors_) {
    if (entry.name == name || format_of(path_) == FileFormat::npy) return &entry;
  }
  return nullptr;
}

HostTensor TensorFile::read(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) {
    std::string names;
    for (const TensorEntry& other : tensors_) {
      if (names.size() > 200) {
        names += ", ...";
        break;
      }
      if (!names.empty()) names += ", ";
      names += printable(other.name);
    }
    throw InputError(path_ + ": has no tensor '" + std::string(name) + "', it has " +
                     (names.empty() ? "none" : names));
  }
  if (entry->dtype == DType::none) {
    throw InputError(path_ + ": tensor '" + std::string(name) + "': dtype is " + entry->spelling +
                     ", expected F32, BF16 or F16");
  }
  HostTensor tensor(std::string(name), entry->dtype, entry->shape);
  read_bytes(entry->offset, {tensor.data(), tensor.bytes()});
  return tensor;
}

void check_writable(const std::string& path) { AtomicFile::check(path); }

}  // namespace tilewise::cli
