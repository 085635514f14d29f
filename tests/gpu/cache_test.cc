// The kernel store: round trip, damage, foreign keys, links, open directories, size bound, and 32
// processes that race on 100 keys. Needs neither GPU nor NVRTC.
#include "cache.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

namespace fs = std::filesystem;
using tilewise::gpu::KernelStore;
constexpr auto kReadWrite = KernelStore::Access::kReadWrite;
constexpr auto kRead = KernelStore::Access::kRead;

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

struct Directory {
  fs::path path;
  Directory() {
    std::string name = (fs::temp_directory_path() / "tilewise-store-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Directory() { fs::remove_all(path); }
};

fs::path only_file(const fs::path& directory) { return fs::directory_iterator(directory)->path(); }

void change_byte(const fs::path& file, long at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
  const char old = static_cast<char>(stream.get());
  stream.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
  stream.put(static_cast<char>(old ^ 1));
}

void test_round_trip() {
  Directory d;
  const KernelStore store((d.path / "a/b").string(), kReadWrite);
  expect(store.why_closed().empty(), "a new store opens");
  expect(!store.read("key"), "an empty store has nothing");
  const std::string code("\0binary\xff", 8);
  expect(store.write("key", code) && store.read("key") == code, "what is written is read");
  expect(!store.read("key2"), "another key is not found");
  struct stat info {};
  expect(stat((d.path / "a/b").c_str(), &info) == 0 && (info.st_mode & 0777) == 0700,
         "the directory is closed to others");
}

void test_damage() {
  for (const long at : {0L, 12L, 20L, 28L, 40L, -1L, -9L}) {
    Directory d;
    const KernelStore store(d.path.string(), kReadWrite);
    store.write("some key", std::string(100, 'x'));
    change_byte(only_file(d.path), at);
    expect(!store.read("some key"), "a changed byte is noticed");
    expect(store.write("some key", "new") && store.read("some key") == "new", "and repaired");
  }
  Directory d;
  const KernelStore store(d.path.string(), kReadWrite);
  store.write("key", std::string(100, 'x'));
  fs::resize_file(only_file(d.path), 50);
  expect(!store.read("key"), "a short file is noticed");
  fs::resize_file(only_file(d.path), 0);
  expect(!store.read("key"), "an empty file is noticed");
}

void test_trust() {
  Directory d;
  const KernelStore store((d.path / "real").string(), kReadWrite);
  store.write("key", "code");
  fs::create_directory_symlink(d.path / "real", d.path / "link");
  const KernelStore linked((d.path / "link").string(), kReadWrite);
  expect(!linked.why_closed().empty() && !linked.read("key"), "a linked directory is refused");
  const fs::path file = only_file(d.path / "real");
  fs::rename(file, d.path / "elsewhere");
  fs::create_symlink(d.path / "elsewhere", file);
  expect(!store.read("key"), "a linked file is refused");
  fs::create_directory(d.path / "open");
  chmod((d.path / "open").c_str(), 0777);
  const KernelStore open((d.path / "open").string(), kReadWrite);
  expect(!open.why_closed().empty() && !open.write("key", "code"), "an open directory is refused");
  const KernelStore none("", kReadWrite);
  expect(!none.why_closed().empty() && !none.write("k", "c") && !none.read("k"), "no directory");
  const KernelStore pack((d.path / "absent").string(), kRead);
  expect(!pack.why_closed().empty() && !fs::exists(d.path / "absent"), "reading creates nothing");
}

void test_bound() {
  Directory d;
  const KernelStore store(d.path.string(), kReadWrite);
  for (int i = 0; i < 10; ++i) {
    store.write("key " + std::to_string(i), std::string(1000, 'x'));
    usleep(2000);
  }
  expect(store.read("key 0").has_value(), "the oldest is there before the cut");  // and now newest
  usleep(2000);
  store.trim(3500);
  expect(store.read("key 0").has_value(), "what was used last stays");
  expect(!store.read("key 1"), "what was not used for longest goes");
}

void test_race() {
  Directory d;
  const auto code = [](int key) {
    return std::string(2000 + key, static_cast<char>('a' + key % 26));
  };
  for (int process = 0; process < 32; ++process) {
    if (fork() == 0) {
      const KernelStore store(d.path.string(), kReadWrite);
      bool good = true;
      for (int i = 0; i < 100; ++i) {
        const int key = (i * 7 + process * 13) % 100;
        const std::string name = "key " + std::to_string(key);
        const auto found = store.read(name);
        good = good && (!found || *found == code(key));
        good = good && store.write(name, code(key)) && store.read(name) == code(key);
      }
      _exit(good ? 0 : 1);
    }
  }
  for (int status = 0; wait(&status) > 0;) {
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a racing process saw a wrong file");
  }
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(d.path)) {
    (void)entry;
    ++files;
  }
  expect(files == 100, "one file a key and no leftovers");
}

}  // namespace

int main() {
  test_round_trip();
  test_damage();
  test_trust();
  test_bound();
  test_race();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
