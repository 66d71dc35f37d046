//! The C ABI of Warpweft: libwarpweft.so, libwarpweft.a and include/warpweft.h.
