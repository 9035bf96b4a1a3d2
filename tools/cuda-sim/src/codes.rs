//! Result codes of the driver that the simulator returns. The names of the constants omit the prefix
//! `CUDA_ERROR_`.

macro_rules! codes {
    ($($name:ident = $code:literal)*) => {
        $(#[doc = concat!("`CUDA_ERROR_", stringify!($name), "`")] pub const $name: u32 = $code;)*

        /// Returns the name of a result as a C string.
        #[must_use]
        pub fn name(code: u32) -> Option<&'static std::ffi::CStr> {
            let text = match code {
                0 => "CUDA_SUCCESS\0",
                $($code => concat!("CUDA_ERROR_", stringify!($name), "\0"),)*
                _ => return None,
            };
            std::ffi::CStr::from_bytes_with_nul(text.as_bytes()).ok()
        }

        /// Returns the result with this name, or with this number as text.
        #[must_use]
        pub fn by_name(name: &str) -> Option<u32> {
            match name {
                $(stringify!($name) => Some($code),)*
                _ => name.parse().ok(),
            }
        }
    };
}

/// The call succeeded.
pub const SUCCESS: u32 = 0;

codes! {
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    STUB_LIBRARY = 34
    DEVICE_UNAVAILABLE = 46
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    MAP_FAILED = 205
    PEER_ACCESS_UNSUPPORTED = 217
    OPERATING_SYSTEM = 304
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    MISALIGNED_ADDRESS = 716
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    SYSTEM_DRIVER_MISMATCH = 803
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_ISOLATION = 905
    UNKNOWN = 999
}
