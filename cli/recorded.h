// Recorded q, k, v: where they lie, and the reader of data=file:NAME in Case texts.
#pragma once

#include <string>
#include <vector>

#include "case/case_tensors.h"

namespace tilewise::cli {

// Folders that may hold recordings: tests/data of the working directory and of the checkout that
// holds this program.
std::vector<std::string> recording_folders();

// NAME is a path, or the name of a recording in one of the folders, with or without .safetensors.
// Throws InputError that says where it looked.
CaseFile read_recording(const std::string& name);

}  // namespace tilewise::cli
