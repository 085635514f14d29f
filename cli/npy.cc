// .npy: magic "\x93NUMPY", version, header length, then a Python dictionary as text, padded to a
// multiple of 64 bytes, then the array.
//
//   {'descr': '<f4', 'fortran_order': False, 'shape': (1, 777, 9, 64), }
//
// The grammar is read by hand: exactly these three keys, plain numbers, nothing evaluated. numpy
// has no bf16, so arrays of uint16 are taken as the bits of bf16, and bf16 is written as '<u2'.
#include <cstring>

#include "cli/atomic_file.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeader = 64 * 1024;
constexpr size_t kDataAlignment = 64;

struct Parsed {
  std::string descr;
  std::vector<int64_t> shape;
  bool fortran_order = false;
};

class DictReader {
 public:
  DictReader(std::string_view file, std::string_view text) : file_(file), text_(text) {}

  Parsed read() {
    Parsed parsed;
    bool seen[3] = {};
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
      if (which < 0) fail("has the key '" + key + "', expected descr, fortran_order, shape");
      if (seen[which]) fail("has the key '" + key + "' twice");
      seen[which] = true;
      expect(':');
      if (which == 0) parsed.descr = descr();
      if (which == 1) parsed.fortran_order = boolean();
      if (which == 2) parsed.shape = shape();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    const char* names[3] = {"descr", "fortran_order", "shape"};
    for (int i = 0; i < 3; ++i) {
      if (!seen[i]) fail(std::string("has no key '") + names[i] + "'");
    }
    skip_space();
    if (at_ != text_.size()) fail("goes on after its closing brace");
    return parsed;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(std::string(file_) + ": header " + what);
  }
  [[noreturn]] void fail_expected(const std::string& expected) const {
    if (at_ >= text_.size()) fail("ends at byte " + std::to_string(at_) + ", expected " + expected);
    const auto c = static_cast<unsigned char>(text_[at_]);
    const std::string got = c >= 0x20 && c < 0x7f ? "'" + std::string(1, text_[at_]) + "'"
                                                  : "byte " + std::to_string(c);
    fail("has " + got + " at byte " + std::to_string(at_) + ", expected " + expected);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail_expected("'" + std::string(1, c) + "'");
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string quoted() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') fail_expected("a quoted word");
    const size_t end = text_.find(quote, at_ + 1);
    const size_t length = end == std::string_view::npos ? 65 : end - at_ - 1;
    if (length > 64) fail("has a quoted word that is longer than 64 bytes or never ends");
    std::string word(text_.substr(at_ + 1, length));
    for (const char c : word) {
      if (c < 0x20 || c > 0x7e || c == '\\') fail("has a quoted word with odd characters");
    }
    at_ = end + 1;
    return word;
  }
  std::string descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') fail("has a structured dtype, expected '<f4'");
    return quoted();
  }
  bool boolean() {
    if (take_word("False")) return false;
    if (take_word("True")) return true;
    fail_expected("True or False");
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    expect('(');
    bool comma = true;
    while (!take(')')) {
      if (!comma) fail_expected("',' or ')'");
      if (sizes.size() == kMaxFileDims) fail("has a shape of more than 8 dimensions");
      sizes.push_back(number());
      comma = take(',');
    }
    if (sizes.size() == 1 && !comma) fail("has the shape (N), expected a tuple: (N,)");
    return sizes;
  }
  int64_t number() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '-') fail("has a negative size in its shape");
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        fail("has a size of 2^63 or more in its shape");
      }
    }
    if (at_ == begin) fail_expected("a size");
    if (text_[begin] == '0' && at_ - begin > 1) fail("has a size with a leading zero in its shape");
    return value;
  }

  std::string_view file_;
  std::string_view text_;
  size_t at_ = 0;
};

DType dtype_of(std::string_view file, const std::string& descr) {
  if (descr == "<f4") return DType::f32;
  if (descr == "<f2") return DType::f16;
  if (descr == "<u2") return DType::bf16;
  throw InputError(std::string(file) + ": dtype is '" + descr +
                   "', expected '<f4', '<f2' or '<u2' (the bits of bf16)");
}

uint64_t prefix_bytes(std::span<const std::byte> start) {
  return static_cast<uint8_t>(start[6]) == 1 ? 10 : 12;
}

}  // namespace

uint64_t npy_header_bytes(std::string_view file, std::span<const std::byte> start,
                          uint64_t file_bytes) {
  const std::string name(file);
  if (start.size() < 10 || std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    throw InputError(name + ": is not a .npy file (it does not start with \\x93NUMPY)");
  }
  const int major = static_cast<uint8_t>(start[6]);
  const int minor = static_cast<uint8_t>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw InputError(name + ": .npy version is " + std::to_string(major) + "." +
                     std::to_string(minor) + ", expected 1.0, 2.0 or 3.0");
  }
  const uint64_t prefix = prefix_bytes(start);
  if (start.size() < prefix) throw InputError(name + ": ends inside its header");
  uint64_t length = 0;
  for (uint64_t i = prefix; i-- > 8;) length = length << 8 | static_cast<uint8_t>(start[i]);
  if (length > kMaxHeader) {
    throw InputError(name + ": header is " + std::to_string(length) +
                     " bytes long, expected at most 65536");
  }
  if (prefix + length > file_bytes) {
    throw InputError(name + ": header is " + std::to_string(length) + " bytes long, the file has " +
                     std::to_string(file_bytes - prefix) + " after the prefix");
  }
  return prefix + length;
}

std::vector<TensorEntry> index_npy(std::string_view file, std::span<const std::byte> header,
                                   uint64_t file_bytes) {
  const uint64_t prefix = prefix_bytes(header);
  const std::string_view text(reinterpret_cast<const char*>(header.data()) + prefix,
                              header.size() - prefix);
  const Parsed parsed = DictReader(file, text).read();
  TensorEntry entry;
  entry.spelling = parsed.descr;
  entry.dtype = dtype_of(file, parsed.descr);
  if (parsed.fortran_order) {
    throw InputError(std::string(file) +
                     ": fortran_order is True, expected False (numpy.ascontiguousarray)");
  }
  entry.shape = parsed.shape;
  entry.offset = header.size();
  entry.bytes = checked_bytes(file, entry.shape, static_cast<uint64_t>(size_of(entry.dtype)));
  if (entry.bytes != file_bytes - entry.offset) {
    throw InputError(std::string(file) + ": has " + std::to_string(file_bytes - entry.offset) +
                     " bytes of data, expected " + std::to_string(entry.bytes) + " (from shape " +
                     shape_text(entry.shape) + " of '" + entry.spelling + "')");
  }
  return {entry};
}

void write_npy(const std::string& path, const HostTensor& tensor) {
  const char* descr = tensor.dtype() == DType::f32   ? "<f4"
                      : tensor.dtype() == DType::f16 ? "<f2"
                                                     : "<u2";
  std::string text = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (";
  for (const int64_t size : tensor.shape()) text += std::to_string(size) + ", ";
  text += "), }";
  const size_t unpadded = kMagic.size() + 4 + text.size() + 1;
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  text += '\n';
  std::string prefix(kMagic);
  prefix += '\x01';
  prefix += '\x00';
  prefix += static_cast<char>(text.size() & 0xff);
  prefix += static_cast<char>(text.size() >> 8);
  AtomicFile file(path);
  file.write(prefix);
  file.write(text);
  file.write(std::span<const std::byte>(tensor.data(), tensor.bytes()));
  file.commit();
}

}  // namespace tilewise::cli
