// A library that knows one function of NCCL's.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 2000;
  return 0;
}
