// cuBLAS by dlopen, as far as standard attention and the measured matrix peak need it: batched
// products of 16-bit matrices with fp32 sums. The library itself never asks for it.
#pragma once

#include <cstdint>
#include <string>

#include "driver.h"
#include "spec.h"

namespace tilewise::gpu {

// Null with the reason in `why` when there is no cuBLAS.
struct Cublas;
const Cublas* find_cublas(std::string* why);

// A batch of matrices, column by column: element (row, column) of matrix i at
// data[i * batch_stride + column * column_stride + row].
struct Matrices {
  const void* data = nullptr;
  int64_t column_stride = 0;
  int64_t batch_stride = 0;
  bool transposed = false;  // a is read as its transpose
};

struct Product {
  Element element = Element::kBf16;
  int64_t rows = 0;     // of c
  int64_t columns = 0;  // of c
  int64_t inner = 0;
  float factor = 1;
  Matrices a;
  Matrices b;
  Matrices c;  // factor a b
  int64_t batch = 1;
};

// Enqueues the product on the current context's device, which is `device`. Throws Error.
void multiply(const Product& product, CUdevice device, CUstream stream);
// Makes the handle of a device, which allocates.
void prepare_products(CUdevice device);

}  // namespace tilewise::gpu
