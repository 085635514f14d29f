// What other processes took of the machine while something was measured. Wall times mean little
// when they took much.
#pragma once

namespace tilewise::cli {

class Neighbours {
 public:
  Neighbours();  // begins
  // Cores that others kept busy since the begin, on average; 0 when the system does not say.
  double busy_cores() const;

 private:
  double own_ = 0;   // CPU seconds of this process
  double all_ = -1;  // of the machine; -1: the system does not say
  double wall_ = 0;
};

}  // namespace tilewise::cli
