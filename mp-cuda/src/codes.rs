//! Names of the driver's results. Results are numbers everywhere, because a newer driver returns results that
//! no list has.

/// The call succeeded.
pub const SUCCESS: u32 = 0;
/// Result "not yet", which is not a failure.
pub const NOT_READY: u32 = 600;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const STUB_LIBRARY: u32 = 34;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const PEER_ACCESS_UNSUPPORTED: u32 = 217;
pub(crate) const NOT_PERMITTED: u32 = 800;
pub(crate) const NOT_SUPPORTED: u32 = 801;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;

/// Results in the driver's documentation, version 12.8.
const NAMES: &[(u32, &str)] = &[
    (0, "SUCCESS"),
    (1, "INVALID_VALUE"),
    (2, "OUT_OF_MEMORY"),
    (3, "NOT_INITIALIZED"),
    (4, "DEINITIALIZED"),
    (5, "PROFILER_DISABLED"),
    (34, "STUB_LIBRARY"),
    (46, "DEVICE_UNAVAILABLE"),
    (100, "NO_DEVICE"),
    (101, "INVALID_DEVICE"),
    (102, "DEVICE_NOT_LICENSED"),
    (200, "INVALID_IMAGE"),
    (201, "INVALID_CONTEXT"),
    (205, "MAP_FAILED"),
    (206, "UNMAP_FAILED"),
    (207, "ARRAY_IS_MAPPED"),
    (208, "ALREADY_MAPPED"),
    (209, "NO_BINARY_FOR_GPU"),
    (210, "ALREADY_ACQUIRED"),
    (211, "NOT_MAPPED"),
    (212, "NOT_MAPPED_AS_ARRAY"),
    (213, "NOT_MAPPED_AS_POINTER"),
    (214, "ECC_UNCORRECTABLE"),
    (215, "UNSUPPORTED_LIMIT"),
    (216, "CONTEXT_ALREADY_IN_USE"),
    (217, "PEER_ACCESS_UNSUPPORTED"),
    (218, "INVALID_PTX"),
    (219, "INVALID_GRAPHICS_CONTEXT"),
    (220, "NVLINK_UNCORRECTABLE"),
    (221, "JIT_COMPILER_NOT_FOUND"),
    (222, "UNSUPPORTED_PTX_VERSION"),
    (223, "JIT_COMPILATION_DISABLED"),
    (224, "UNSUPPORTED_EXEC_AFFINITY"),
    (225, "UNSUPPORTED_DEVSIDE_SYNC"),
    (226, "CONTAINED"),
    (300, "INVALID_SOURCE"),
    (301, "FILE_NOT_FOUND"),
    (302, "SHARED_OBJECT_SYMBOL_NOT_FOUND"),
    (303, "SHARED_OBJECT_INIT_FAILED"),
    (304, "OPERATING_SYSTEM"),
    (400, "INVALID_HANDLE"),
    (401, "ILLEGAL_STATE"),
    (402, "LOSSY_QUERY"),
    (500, "NOT_FOUND"),
    (600, "NOT_READY"),
    (700, "ILLEGAL_ADDRESS"),
    (701, "LAUNCH_OUT_OF_RESOURCES"),
    (702, "LAUNCH_TIMEOUT"),
    (703, "LAUNCH_INCOMPATIBLE_TEXTURING"),
    (704, "PEER_ACCESS_ALREADY_ENABLED"),
    (705, "PEER_ACCESS_NOT_ENABLED"),
    (708, "PRIMARY_CONTEXT_ACTIVE"),
    (709, "CONTEXT_IS_DESTROYED"),
    (710, "ASSERT"),
    (711, "TOO_MANY_PEERS"),
    (712, "HOST_MEMORY_ALREADY_REGISTERED"),
    (713, "HOST_MEMORY_NOT_REGISTERED"),
    (714, "HARDWARE_STACK_ERROR"),
    (715, "ILLEGAL_INSTRUCTION"),
    (716, "MISALIGNED_ADDRESS"),
    (717, "INVALID_ADDRESS_SPACE"),
    (718, "INVALID_PC"),
    (719, "LAUNCH_FAILED"),
    (720, "COOPERATIVE_LAUNCH_TOO_LARGE"),
    (721, "TENSOR_MEMORY_LEAK"),
    (800, "NOT_PERMITTED"),
    (801, "NOT_SUPPORTED"),
    (802, "SYSTEM_NOT_READY"),
    (803, "SYSTEM_DRIVER_MISMATCH"),
    (804, "COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (805, "MPS_CONNECTION_FAILED"),
    (806, "MPS_RPC_FAILURE"),
    (807, "MPS_SERVER_NOT_READY"),
    (808, "MPS_MAX_CLIENTS_REACHED"),
    (809, "MPS_MAX_CONNECTIONS_REACHED"),
    (810, "MPS_CLIENT_TERMINATED"),
    (811, "CDP_NOT_SUPPORTED"),
    (812, "CDP_VERSION_MISMATCH"),
    (900, "STREAM_CAPTURE_UNSUPPORTED"),
    (901, "STREAM_CAPTURE_INVALIDATED"),
    (902, "STREAM_CAPTURE_MERGE"),
    (903, "STREAM_CAPTURE_UNMATCHED"),
    (904, "STREAM_CAPTURE_UNJOINED"),
    (905, "STREAM_CAPTURE_ISOLATION"),
    (906, "STREAM_CAPTURE_IMPLICIT"),
    (907, "CAPTURED_EVENT"),
    (908, "STREAM_CAPTURE_WRONG_THREAD"),
    (909, "TIMEOUT"),
    (910, "GRAPH_EXEC_UPDATE_FAILURE"),
    (911, "EXTERNAL_DEVICE"),
    (912, "INVALID_CLUSTER_SIZE"),
    (913, "FUNCTION_NOT_LOADED"),
    (914, "INVALID_RESOURCE_TYPE"),
    (915, "INVALID_RESOURCE_CONFIGURATION"),
    (916, "KEY_ROTATION"),
    (999, "UNKNOWN"),
];

/// Returns the name of a result, without the prefix `CUDA_ERROR_`, or `None` for a result of a newer driver.
///
/// ```
/// use mp_cuda::codes;
///
/// assert_eq!(codes::name(700), Some("ILLEGAL_ADDRESS"));
/// assert_eq!(codes::name(123_456), None);
/// ```
#[must_use]
pub fn name(code: u32) -> Option<&'static str> {
    NAMES.binary_search_by_key(&code, |(code, _)| *code).ok().map(|at| NAMES[at].1)
}

/// Returns `true` for results after which a context returns only errors: the work on the device is lost.
pub(crate) fn is_lost(code: u32) -> bool {
    matches!(code, 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}

/// Returns advice about a result, if the driver's name does not suffice.
pub(crate) fn help(code: u32) -> Option<&'static str> {
    Some(match code {
        2 => "free tensors, empty the cache, or use another device",
        46 => {
            "another process uses the device alone (compute mode), or it fell off the bus: see `nvidia-smi`"
        }
        101 => "there is no device of that number among those that CUDA_VISIBLE_DEVICES shows",
        201 => "the call was made without this device's primary context; let mp-cuda make it",
        700 | 714..=719 => {
            "a kernel of this process failed; run it under `compute-sanitizer`. All later calls fail likewise"
        }
        702 => "a kernel ran for longer than this system allows",
        801 => "this device, driver or system (WSL, a virtual GPU) lacks it",
        802 => "the system's fabric or NVSwitch service isn't ready: see `nvidia-smi -q`",
        803 => {
            "the driver's library and kernel module are of different versions: reboot, or reload the module"
        }
        804 => {
            "the forward-compatibility library (`cuda-compat`) doesn't support this device: take it out of \
             the library path"
        }
        805..=810 => "the MPS server of this device isn't there, or refuses: see CUDA_MPS_PIPE_DIRECTORY",
        900..=908 => "the stream is being captured into a graph: end the capture first",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_error_codes_have_names() {
        assert!(NAMES.is_sorted_by_key(|(code, _)| *code), "looked up by halving");
        NAMES.iter().for_each(|(code, expected)| assert_eq!(name(*code), Some(*expected)));
        assert_eq!((name(6), name(998), name(u32::MAX)), (None, None, None));
    }
}
