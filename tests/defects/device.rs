//! Planning, compiling, device memory and custom kernels.
