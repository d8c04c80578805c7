/* For wine: the source of random numbers of Rust's standard library, which older versions lack. */
__declspec(dllimport) unsigned char SystemFunction036(void *, unsigned long);
__declspec(dllexport) int ProcessPrng(void *out, unsigned long long n) { return SystemFunction036(out, (unsigned long)n); }
