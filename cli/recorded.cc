// Looking for recordings, and keeping the three tensors of one alive as long as its views.
#include "cli/recorded.h"

#include <unistd.h>

#include "cli/machine.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr const char* kEnding = ".safetensors";

struct Recording {
  HostTensor q, k, v;
};

std::string find_recording(const std::string& name) {
  const std::string file = name.ends_with(kEnding) ? name : name + kEnding;
  if (file.find('/') != std::string::npos || ::access(file.c_str(), F_OK) == 0) return file;
  std::string looked = ".";
  for (const std::string& folder : recording_folders()) {
    const std::string path = folder + "/" + file;
    if (::access(path.c_str(), F_OK) == 0) return path;
    looked += ", " + folder;
  }
  throw InputError("data=file:" + name + ": no " + file + " in " + looked);
}

Tensor view_of(const std::string& path, const HostTensor& tensor) {
  const std::vector<int64_t>& s = tensor.shape();
  if (s.size() != 4) {
    throw InputError(path + ": tensor '" + tensor.name() + "' has shape " + tensor.shape_text() +
                     ", expected 4 dimensions");
  }
  return Tensor::bshd(tensor.data(), tensor.dtype(), s[0], s[1], s[2], s[3]);
}

}  // namespace

std::vector<std::string> recording_folders() {
  return {"tests/data", program_folder() + "/../../tests/data",
          program_folder() + "/../share/tilewise/data"};
}

CaseFile read_recording(const std::string& name) {
  const std::string path = find_recording(name);
  const TensorFile file(path);
  const auto recording = std::make_shared<Recording>();
  recording->q = file.read("q");
  recording->k = file.read("k");
  recording->v = file.read("v");
  return {recording, view_of(path, recording->q), view_of(path, recording->k),
          view_of(path, recording->v)};
}

}  // namespace tilewise::cli
