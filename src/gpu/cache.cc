// The kernel store of cache.h: file format, trust checks, atomic writes and least-recently-used
// removal. Every access goes through the directory's own descriptor, never through its path again.
#include "cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace tilewise::gpu {
namespace {

constexpr char kMagic[] = "TWKERNEL1\n";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr size_t kHeaderBytes = kMagicBytes + 16;
constexpr char kSuffix[] = ".cubin";
constexpr char kSourceSuffix[] = ".cu";

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

std::string file_name(const std::string& key, const char* suffix = kSuffix) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (uint64_t hash = fnv1a(key), i = 0; i < 16; ++i, hash >>= 4) name += kDigits[hash & 15];
  return name + suffix;
}

void append_u64(std::string& text, uint64_t value) {
  for (int i = 0; i < 8; ++i) text += static_cast<char>(value >> (8 * i));
}

uint64_t read_u64(const std::string& text, size_t at) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(text[at + i]);
  return value;
}

// Closes its descriptor.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

bool is_mine_alone(const struct stat& info) {
  return info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::optional<std::string> read_all(int descriptor, size_t bytes) {
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(descriptor, text.data() + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return text;
}

bool write_all(int descriptor, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(descriptor, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return true;
}

// mkdir -p with mode 0700 for what is missing.
void make_directories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0700);
  }
  mkdir(path.c_str(), 0700);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool ends_with(const std::string& text, const char* suffix) {
  const size_t length = std::strlen(suffix);
  return text.size() >= length && text.compare(text.size() - length, length, suffix) == 0;
}

}  // namespace

std::string cache_directory() {
  const std::string chosen = environment("TILEWISE_CACHE_DIR");
  if (!chosen.empty()) return chosen;
  const std::string xdg = environment("XDG_CACHE_HOME");
  if (!xdg.empty() && xdg[0] == '/') return xdg + "/tilewise";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/tilewise";
}

std::string pack_directory() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&pack_directory), &self) == 0 || self.dli_fname == nullptr) {
    return "";
  }
  const std::string library = self.dli_fname;
  const size_t slash = library.rfind('/');
  return (slash == std::string::npos ? "." : library.substr(0, slash)) + "/tilewise-kernels";
}

KernelStore::KernelStore(const std::string& path, Access access) : path_(path), access_(access) {
  if (path.empty()) {
    why_closed_ = "no cache directory: TILEWISE_CACHE_DIR, XDG_CACHE_HOME and HOME are not set";
    return;
  }
  if (access == Access::kReadWrite) make_directories(path);
  directory_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory_ < 0) {
    why_closed_ = path + ": " + std::strerror(errno);
    return;
  }
  struct stat info {};
  const bool trusted = fstat(directory_, &info) == 0 &&
                       (is_mine_alone(info) || (access == Access::kRead && info.st_uid == 0 &&
                                                (info.st_mode & S_IWOTH) == 0));
  if (!trusted) {
    why_closed_ = path + ": belongs to somebody else or others may write to it";
    close(directory_);
    directory_ = -1;
  }
}

KernelStore::~KernelStore() {
  if (directory_ >= 0) close(directory_);
}

std::optional<std::string> KernelStore::read(const std::string& key) const {
  if (directory_ < 0) return std::nullopt;
  const std::string name = file_name(key);
  const File file(openat(directory_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!file.is_open() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  if (access_ == Access::kReadWrite && !is_mine_alone(info)) return std::nullopt;
  const std::optional<std::string> text = read_all(file.get(), static_cast<size_t>(info.st_size));
  if (!text || text->size() < kHeaderBytes + key.size() + 8) return std::nullopt;
  if (text->compare(0, kMagicBytes, kMagic) != 0) return std::nullopt;
  const uint64_t key_bytes = read_u64(*text, kMagicBytes);
  const uint64_t code_bytes = read_u64(*text, kMagicBytes + 8);
  if (key_bytes != key.size() || code_bytes != text->size() - kHeaderBytes - key_bytes - 8) {
    return std::nullopt;
  }
  if (text->compare(kHeaderBytes, key.size(), key) != 0) return std::nullopt;
  const size_t body = text->size() - 8;
  if (fnv1a(text->substr(0, body)) != read_u64(*text, body)) return std::nullopt;
  if (access_ == Access::kReadWrite) futimens(file.get(), nullptr);  // used now
  return text->substr(kHeaderBytes + key.size(), code_bytes);
}

bool KernelStore::write(const std::string& key, const std::string& code) const {
  std::string text = kMagic;
  append_u64(text, key.size());
  append_u64(text, code.size());
  text += key + code;
  append_u64(text, fnv1a(text));
  return write_file(file_name(key), text);
}

std::string KernelStore::write_source(const std::string& key, const std::string& source) const {
  const std::string name = file_name(key, kSourceSuffix);
  return write_file(name, source) ? path_ + "/" + name : "";
}

bool KernelStore::write_file(const std::string& name, const std::string& text) const {
  if (directory_ < 0 || access_ != Access::kReadWrite) return false;
  static std::atomic<unsigned> count = 0;
  const std::string temporary =
      name + "." + std::to_string(getpid()) + "." + std::to_string(count++) + ".new";
  bool written = false;
  {
    const File file(openat(directory_, temporary.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    written = file.is_open() && write_all(file.get(), text) && fsync(file.get()) == 0;
  }
  if (written && renameat(directory_, temporary.c_str(), directory_, name.c_str()) == 0) {
    trim(kMaxBytes);
    return true;
  }
  unlinkat(directory_, temporary.c_str(), 0);
  return false;
}

void KernelStore::trim(size_t max_bytes) const {
  struct Entry {
    std::string name;
    timespec used;
    size_t bytes;
  };
  DIR* listing = directory_ < 0 ? nullptr : fdopendir(dup(directory_));
  if (listing == nullptr) return;
  rewinddir(listing);
  std::vector<Entry> entries;
  size_t total = 0;
  while (const dirent* entry = readdir(listing)) {
    struct stat info {};
    const std::string name = entry->d_name;
    const bool ours =
        ends_with(name, kSuffix) || ends_with(name, kSourceSuffix) || ends_with(name, ".new");
    if (!ours) continue;
    if (fstatat(directory_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    entries.push_back({name, info.st_mtim, static_cast<size_t>(info.st_size)});
    total += entries.back().bytes;
  }
  closedir(listing);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                          : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Entry& entry : entries) {
    if (total <= max_bytes) break;
    if (unlinkat(directory_, entry.name.c_str(), 0) == 0) total -= entry.bytes;
  }
}

}  // namespace tilewise::gpu
