//! Result codes of the driver, and advice about them. They are plain numbers instead of an enum, because a
//! newer driver may return unknown codes.

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

/// Codes and names of the results after which a context returns only errors, because the work on the device
/// is lost.
const LOST: [(u32, &str); 14] = [
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (226, "CUDA_ERROR_CONTAINED"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (710, "CUDA_ERROR_ASSERT"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
];

/// Returns the name of a result after which the work on the device is lost, or `None` for other results.
pub(crate) fn lost_name(code: u32) -> Option<&'static str> {
    LOST.iter().find(|(lost, _)| *lost == code).map(|(_, name)| *name)
}

/// Returns advice about a result, or `None` if the result's name suffices.
pub(crate) fn help(code: u32) -> Option<&'static str> {
    Some(match code {
        2 => "free tensors, empty the cache, or use another device",
        46 => {
            "another process uses the device alone (compute mode), or it fell off the bus: see `nvidia-smi`"
        }
        101 => "CUDA_VISIBLE_DEVICES has no device with this number",
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
