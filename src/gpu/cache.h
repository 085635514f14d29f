// Compiled kernels on disk. A store is one directory of files named by a hash of their key; each
// file holds the whole key, the cubin and a checksum, so a wrong or damaged file is never loaded.
//
//   file = "TWKERNEL1\n", key bytes (u64), code bytes (u64), key, code, FNV-1a of all that (u64)
//
// Native code is loaded from here, so the directory must belong to the user and be closed to
// others, and no symbolic link is followed. Docs: docs/jit.md
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tilewise::gpu {

// The user's kernel cache: TILEWISE_CACHE_DIR, else XDG_CACHE_HOME/tilewise, else
// HOME/.cache/tilewise; "" when none of them is set.
std::string cache_directory();
// Kernels shipped beside the library, or "".
std::string pack_directory();

// Opens `path` for this user; a store that cannot be used safely reads nothing and writes nothing.
class KernelStore {
 public:
  enum class Access { kRead, kReadWrite };

  KernelStore(const std::string& path, Access access);
  ~KernelStore();
  KernelStore(const KernelStore&) = delete;
  KernelStore& operator=(const KernelStore&) = delete;

  // Why the store is not used; empty when it is.
  const std::string& why_closed() const { return why_closed_; }
  std::optional<std::string> read(const std::string& key) const;
  // False when the file could not be written; the caller has its cubin all the same.
  bool write(const std::string& key, const std::string& code) const;
  // Keeps the source of a kernel that did not compile, for whoever reports it. Its path, or "".
  std::string write_source(const std::string& key, const std::string& source) const;

  static constexpr size_t kMaxBytes = size_t{256} << 20;
  // Removes the files that were used longest ago until the store is smaller than `max_bytes`.
  void trim(size_t max_bytes) const;

 private:
  bool write_file(const std::string& name, const std::string& text) const;

  std::string path_;
  int directory_ = -1;
  Access access_;
  std::string why_closed_;
};

}  // namespace tilewise::gpu
