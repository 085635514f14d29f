// .safetensors: u64 little-endian N, N bytes of JSON that start with '{', then the tensors' bytes.
//
//   {"__metadata__": {"key": "text"}, "q": {"dtype": "BF16", "shape": [1, 777, 9, 64],
//    "data_offsets": [0, 895104]}, ...}
//
// The grammar is this and nothing more, so it is read by hand in one pass: keys are unique, numbers
// are plain, the tensors cover the bytes after the header without gap or overlap, and each has
// exactly the bytes of its shape. Text is bounded by the header, tensors by kMaxTensors.
#include <algorithm>
#include <set>

#include "cli/atomic_file.h"
#include "cli/json_scanner.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr size_t kMaxTensors = 65536;
constexpr uint64_t kPrefix = 8;

struct FileType {
  std::string_view spelling;
  uint64_t bytes;
  DType dtype;
};

// Types that other tensors of a file may have, so that their sizes can be checked.
constexpr FileType kTypes[] = {
    {"F32", 4, DType::f32},      {"BF16", 2, DType::bf16},    {"F16", 2, DType::f16},
    {"F64", 8, DType::none},     {"I64", 8, DType::none},     {"U64", 8, DType::none},
    {"I32", 4, DType::none},     {"U32", 4, DType::none},     {"I16", 2, DType::none},
    {"U16", 2, DType::none},     {"I8", 1, DType::none},      {"U8", 1, DType::none},
    {"F8_E5M2", 1, DType::none}, {"F8_E4M3", 1, DType::none}, {"BOOL", 1, DType::none}};

const FileType* find_type(std::string_view spelling) {
  for (const FileType& type : kTypes) {
    if (type.spelling == spelling) return &type;
  }
  return nullptr;
}

class HeaderReader {
 public:
  HeaderReader(std::string_view file, std::string_view text) : file_(file), json_(file, text) {}

  // Offsets are still relative to the first byte after the header.
  std::vector<TensorEntry> read() {
    std::vector<TensorEntry> tensors;
    bool metadata = false;
    json_.begin('{');
    while (json_.next('}')) {
      const std::string key = json_.string();
      json_.expect(':');
      if (key == "__metadata__") {
        if (metadata) json_.fail("has '__metadata__' twice");
        metadata = true;
        read_metadata();
        continue;
      }
      if (tensors.size() == kMaxTensors) json_.fail("has more than 65536 tensors");
      tensors.push_back(read_tensor(key));
    }
    json_.finish();
    return tensors;
  }

 private:
  void read_metadata() {
    std::set<std::string> keys;
    json_.begin('{');
    while (json_.next('}')) {
      const std::string key = json_.string();
      if (!keys.insert(key).second) json_.fail("has '" + printable(key) + "' twice");
      if (keys.size() > kMaxTensors) json_.fail("has more than 65536 words of metadata");
      json_.expect(':');
      json_.skip_string();
    }
  }

  TensorEntry read_tensor(const std::string& name) {
    TensorEntry entry;
    entry.name = name;
    const std::string where = std::string(file_) + ": tensor '" + printable(name) + "'";
    bool seen[3] = {};
    uint64_t end = 0;
    json_.begin('{');
    while (json_.next('}')) {
      const std::string key = json_.string();
      json_.expect(':');
      const int which = key == "dtype" ? 0 : key == "shape" ? 1 : key == "data_offsets" ? 2 : -1;
      if (which < 0) {
        throw InputError(where + ": key is '" + printable(key) +
                         "', expected dtype, shape or data_offsets");
      }
      if (seen[which]) throw InputError(where + ": has '" + key + "' twice");
      seen[which] = true;
      if (which == 0) entry.spelling = json_.string();
      if (which == 1) entry.shape = read_shape(where);
      if (which == 2) read_offsets(where, entry.offset, end);
    }
    const char* names[3] = {"dtype", "shape", "data_offsets"};
    for (int i = 0; i < 3; ++i) {
      if (!seen[i]) throw InputError(where + ": has no " + names[i]);
    }
    check_sizes(where, entry, end);
    return entry;
  }

  std::vector<int64_t> read_shape(const std::string& where) {
    std::vector<int64_t> shape;
    json_.begin('[');
    while (json_.next(']')) {
      if (shape.size() == kMaxFileDims) {
        throw InputError(where + ": shape has more than 8 dimensions");
      }
      shape.push_back(static_cast<int64_t>(json_.number(where + ": shape")));
    }
    return shape;
  }

  void read_offsets(const std::string& where, uint64_t& begin, uint64_t& end) {
    uint64_t offsets[2] = {};
    int count = 0;
    json_.begin('[');
    while (json_.next(']')) {
      const uint64_t offset = json_.number(where + ": data_offsets");
      if (count < 2) offsets[count] = offset;
      if (++count > 2) break;
    }
    if (count != 2) throw InputError(where + ": data_offsets is not a pair of numbers");
    begin = offsets[0];
    end = offsets[1];
    if (begin > end) {
      throw InputError(where + ": data_offsets are [" + std::to_string(begin) + ", " +
                       std::to_string(end) + "], expected begin <= end");
    }
  }

  void check_sizes(const std::string& where, TensorEntry& entry, uint64_t end) {
    const FileType* type = find_type(entry.spelling);
    if (type == nullptr) {
      throw InputError(where + ": dtype is '" + printable(entry.spelling) +
                       "', expected F32, BF16 or F16");
    }
    entry.dtype = type->dtype;
    entry.bytes = checked_bytes(where, entry.shape, type->bytes);
    if (end - entry.offset != entry.bytes) {
      throw InputError(where + ": data_offsets hold " + std::to_string(end - entry.offset) +
                       " bytes, expected " + std::to_string(entry.bytes) + " (from shape " +
                       shape_text(entry.shape) + " of " + entry.spelling + ")");
    }
  }

  std::string_view file_;
  JsonScanner json_;
};

void check_unique(std::string_view file, const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& entry : tensors) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw InputError(std::string(file) + ": has the tensor '" + printable(*twice) + "' twice");
  }
}

// Sorted by offset, the tensors cover the data exactly.
void check_cover(std::string_view file, std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t covered = 0;
  for (const TensorEntry& entry : tensors) {
    const std::string where = std::string(file) + ": tensor '" + printable(entry.name) + "'";
    if (entry.offset > data_bytes || entry.bytes > data_bytes - entry.offset) {
      throw InputError(where + ": ends at byte " + std::to_string(entry.offset + entry.bytes) +
                       ", the file has " + std::to_string(data_bytes) + " after its header");
    }
    if (entry.offset != covered) {
      throw InputError(where + ": begins at byte " + std::to_string(entry.offset) + ", expected " +
                       std::to_string(covered) +
                       (entry.offset < covered ? " (it overlaps another)" : " (there is a gap)"));
    }
    covered += entry.bytes;
  }
  if (covered != data_bytes) {
    throw InputError(std::string(file) + ": has " + std::to_string(data_bytes) +
                     " bytes after its header, its tensors cover " + std::to_string(covered));
  }
}

uint64_t load_u64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string_view spelling_of(DType dtype) {
  for (const FileType& type : kTypes) {
    if (type.dtype == dtype) return type.spelling;
  }
  return "";
}

std::string header_text(std::span<const HostTensor* const> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text += json_quoted(key) + ":" + json_quoted(value);
    }
    text += "}";
  }
  uint64_t offset = 0;
  for (const HostTensor* tensor : tensors) {
    if (text.size() > 1) text += ',';
    text += json_quoted(tensor->name()) + ":{\"dtype\":\"";
    text.append(spelling_of(tensor->dtype()));
    text += "\",\"shape\":" + tensor->shape_text() + ",\"data_offsets\":[" +
            std::to_string(offset) + "," + std::to_string(offset + tensor->bytes()) + "]}";
    offset += tensor->bytes();
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

uint64_t safetensors_header_bytes(std::string_view file, std::span<const std::byte> start,
                                  uint64_t file_bytes) {
  const std::string name(file);
  if (start.size() < kPrefix || file_bytes < kPrefix) {
    throw InputError(name + ": is " + std::to_string(file_bytes) +
                     " bytes long, expected at least 8");
  }
  const uint64_t length = load_u64(start);
  if (length > kMaxHeader) {
    throw InputError(name + ": header is " + std::to_string(length) +
                     " bytes long, expected at most 100000000");
  }
  if (length > file_bytes - kPrefix) {
    throw InputError(name + ": header is " + std::to_string(length) + " bytes long, the file has " +
                     std::to_string(file_bytes - kPrefix) + " after the prefix");
  }
  return kPrefix + length;
}

std::vector<TensorEntry> index_safetensors(std::string_view file, std::span<const std::byte> header,
                                           uint64_t file_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(header.data()) + kPrefix,
                              header.size() - kPrefix);
  if (text.empty() || text[0] != '{') {
    throw InputError(std::string(file) + ": header does not start with '{'");
  }
  std::vector<TensorEntry> tensors = HeaderReader(file, text).read();
  check_unique(file, tensors);
  check_cover(file, tensors, file_bytes - header.size());
  for (TensorEntry& entry : tensors) entry.offset += header.size();
  return tensors;
}

void write_safetensors(const std::string& path, std::span<const HostTensor* const> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string text = header_text(tensors, metadata);
  std::string prefix;
  for (int shift = 0; shift < 64; shift += 8) {
    prefix += static_cast<char>(static_cast<uint64_t>(text.size()) >> shift & 0xff);
  }
  AtomicFile file(path);
  file.write(prefix);
  file.write(text);
  for (const HostTensor* tensor : tensors) {
    file.write(std::span<const std::byte>(tensor->data(), tensor->bytes()));
  }
  file.commit();
}

}  // namespace tilewise::cli
