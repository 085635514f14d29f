// AtomicFile: a file that appears whole or not at all. Bytes go to a temporary name in the same
// directory; commit() syncs it, gives it its real name and syncs the directory. Without commit()
// the temporary file is removed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tilewise::cli {

class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);  // throws InputError
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

  // Throws InputError when a file of this name could not be made.
  static void check(const std::string& path);

 private:
  [[noreturn]] void fail(const char* what) const;
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace tilewise::cli
