// The micro-kernel of one instruction set as plain calls, so that they can be timed. Each unit is
// compiled with the options of the library's own, from the same headers.
#pragma once

namespace tilewise::speed {

struct Call {
  const char* name;
  double (*run)(int count);  // `count` times; the floating-point operations of all
};

struct Unit {
  const char* name;
  bool (*available)();
  Call peak;         // multiply-adds in registers
  Call products[3];  // scores, output and gradients of a tile: at least kLeastShare of the peak
  Call slow;         // one row of one vector, which waits for each sum: under kLeastShare
};

extern const Unit kAvx2;
extern const Unit kAvx512;
extern const Unit kAvx512Bf16;

}  // namespace tilewise::speed
