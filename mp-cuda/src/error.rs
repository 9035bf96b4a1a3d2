//! Error type of this crate.

use std::fmt;

use crate::codes;
use crate::uuid::Uuid;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a GPU. The message names the request and the cause, and gives advice where the caller can act.
///
/// | cause | variants |
/// |---|---|
/// | this machine: a driver, a device or a setting is missing | [`NoDriver`](Self::NoDriver), [`Stub`](Self::Stub), [`OldDriver`](Self::OldDriver), [`Symbol`](Self::Symbol), [`NoDevice`](Self::NoDevice) |
/// | the call: repeating it does not help | [`InvalidDevice`](Self::InvalidDevice), [`UnknownDevice`](Self::UnknownDevice), [`OtherContext`](Self::OtherContext) |
/// | this process: another process can use the device | [`Forked`](Self::Forked), [`DeviceLost`](Self::DeviceLost) |
/// | an exhausted resource: a later call may succeed | [`OutOfDeviceMemory`](Self::OutOfDeviceMemory), [`TooManyStreams`](Self::TooManyStreams), [`Capturing`](Self::Capturing) |
/// | this device can't do it | [`Unsupported`](Self::Unsupported), [`PeerAccess`](Self::PeerAccess), [`NotShareable`](Self::NotShareable) |
/// | another process has ended, or wrote invalid data | [`ProducerDied`](Self::ProducerDied), [`Gone`](Self::Gone), [`Malformed`](Self::Malformed) |
/// | a shape, a message or the arena | [`Core`](Self::Core), [`NotContiguous`](Self::NotContiguous) |
/// | any other refusal of the driver | [`Driver`](Self::Driver) |
#[non_exhaustive]
pub enum Error {
    /// No library of the CUDA driver was found: install NVIDIA's driver, or add its folder to
    /// `LD_LIBRARY_PATH`. In a container the NVIDIA container toolkit provides it from the host.
    NoDriver {
        /// Library names that were tried, each with the loader's message.
        tried: Vec<String>,
    },
    /// The library is a toolkit's stub, which is only for linking and contains no driver. Its folder precedes
    /// the driver's in `LD_LIBRARY_PATH`.
    Stub,
    /// The driver is too old.
    OldDriver {
        /// Version of the driver as `1000 * major + 10 * minor`: the newest version of CUDA that the driver
        /// supports.
        found: i32,
        /// Version of the oldest driver that suffices.
        needed: i32,
    },
    /// The driver lacks a function: it is too old, or not a CUDA driver.
    Symbol {
        /// Name of the function.
        name: &'static str,
        /// Library without the function.
        library: String,
        /// Version of the driver, if known.
        version: Option<i32>,
    },
    /// A driver was found, but this process sees no device.
    NoDevice,
    /// There are devices, but none with this number.
    InvalidDevice {
        /// Requested number of a device.
        ordinal: u32,
        /// Number of devices.
        count: u32,
    },
    /// This process does not see a device of this identity.
    UnknownDevice {
        /// Requested device.
        uuid: Uuid,
        /// Devices that this process sees.
        visible: Vec<Uuid>,
    },
    /// The context is not its device's primary context. Memory of other processes can be opened only in the
    /// primary context.
    OtherContext,
    /// This process was forked from one that had initialised the driver. The driver was not called. Start
    /// processes by `spawn`, or before the first use of a GPU.
    Forked,
    /// The device has less free memory than requested, even after this process gave all unused memory back.
    OutOfDeviceMemory {
        /// Requested bytes.
        asked: u64,
        /// Free bytes.
        free: u64,
        /// Bytes that this process has reserved on the device: memory of tensors in any process, and unused
        /// memory.
        ours: u64,
        /// Bytes of retired slabs, which are included in `ours`. The device may still run work of a dead
        /// process that writes to these slabs, so they are not reused. A retired slab is freed when its last
        /// tensor is dropped.
        retired: u64,
    },
    /// The descriptor of another process's memory is lost. Processes that have not opened the memory yet can
    /// no longer open it.
    Gone,
    /// A device can't access memory of another device. Copy the tensor by its method `to_device`.
    PeerAccess {
        /// Device that has no access.
        from: Uuid,
        /// Device of the memory.
        to: Uuid,
    },
    /// A kernel failed, or the device was lost: the driver returns this code for each further call of this
    /// process. Data on the device is lost to this process. Start another process.
    DeviceLost {
        /// Function that returned the code first.
        call: &'static str,
        /// Result of the function.
        code: u32,
    },
    /// The driver refused a call.
    Driver {
        /// Name of the function.
        call: &'static str,
        /// Result of the function.
        code: u32,
        /// Driver's name of the result, or a text with the number.
        name: String,
        /// Advice, if there is any.
        help: Option<&'static str>,
    },
    /// The producing process is dead and its work never ran, so the memory has its earlier contents. Or the
    /// memory itself is lost: [memory of another library](crate::ForeignMemory) that is opened by a legacy
    /// handle ends with the process that allocated it. Have another process make the data again.
    ProducerDied {
        /// Id of the process, if known.
        pid: Option<u32>,
    },
    /// The stream's work is being captured into a graph. Marks of progress and waits would be captured into
    /// the graph, and repeated at each launch. End the capture first.
    Capturing,
    /// No clock is free. Each stream whose progress other processes can see has one of the clocks in the
    /// arena. Drop some streams.
    TooManyStreams,
    /// The device or its driver lacks an ability that is needed for sharing memory, or for ordering streams,
    /// between processes.
    Unsupported {
        /// Missing ability.
        what: &'static str,
        /// Device without the ability.
        device: Uuid,
    },
    /// The memory of another library can't be opened by other processes.
    NotShareable {
        /// Reason why other processes can't open the memory.
        why: &'static str,
    },
    /// The elements of a view are not adjacent, as the caller needs them: copy them first (`to_device`).
    NotContiguous {
        /// Shape of the view.
        shape: Vec<usize>,
    },
    /// Bytes of a message, or words in shared memory, are invalid.
    Malformed(String),
    /// Error that does not concern the device: of the arena, of shapes or of messages.
    Core(mp_core::Error),
}

impl From<mp_core::Error> for Error {
    fn from(error: mp_core::Error) -> Self {
        Self::Core(error)
    }
}

impl Error {
    /// Returns the error for a driver's result. `ask` returns the driver's name of the result.
    pub(crate) fn driver(call: &'static str, code: u32, ask: impl FnOnce() -> Option<String>) -> Self {
        if codes::lost_name(code).is_some() {
            return Self::DeviceLost { call, code };
        }
        Self::Driver {
            call,
            code,
            name: ask().unwrap_or_else(|| UNNAMED.to_owned()),
            help: codes::help(code),
        }
    }
}

/// Name of a result that the driver does not name.
const UNNAMED: &str = "a result that neither this version of mp-cuda nor the driver names";

/// Formats a version of the driver, such as `CUDA 12.4`.
fn cuda(version: i32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver { tried } => write!(
                f,
                "no CUDA driver was found ({}): install NVIDIA's driver, or name its folder in \
                 LD_LIBRARY_PATH; a container gets it from its host by the NVIDIA container toolkit",
                tried.join("; ")
            ),
            Self::Stub => f.write_str(
                "the library that was found as libcuda.so.1 is a toolkit's stub, without a driver in it: \
                 take the folder `stubs` out of LD_LIBRARY_PATH, and install NVIDIA's driver if needed",
            ),
            Self::OldDriver { found, needed } => write!(
                f,
                "the driver supports {}, and {} is needed: install a newer NVIDIA driver (515 or later)",
                cuda(*found),
                cuda(*needed)
            ),
            Self::Symbol { name, library, version: Some(version) } => write!(
                f,
                "the CUDA driver ({library}, {}) has no function {name}: install a newer NVIDIA driver",
                cuda(*version)
            ),
            Self::Symbol { name, library, version: None } => write!(
                f,
                "{library} has no function {name}, so it is not a CUDA driver, or a very old one: install \
                 NVIDIA's driver (515 or later)"
            ),
            Self::NoDevice => f.write_str(
                "there is a CUDA driver and no device that this process may use: see `nvidia-smi`, \
                 CUDA_VISIBLE_DEVICES, and the permissions of /dev/nvidia*",
            ),
            Self::InvalidDevice { ordinal, count } => write!(
                f,
                "there is no device {ordinal}: this process sees {count} (CUDA_VISIBLE_DEVICES chooses \
                 which), numbered from 0"
            ),
            Self::UnknownDevice { uuid, visible } => {
                write!(f, "this process doesn't see the device {uuid}, but ")?;
                for (i, one) in visible.iter().enumerate() {
                    write!(f, "{}{one}", if i == 0 { "" } else { ", " })?;
                }
                if visible.is_empty() {
                    f.write_str("none")?;
                }
                f.write_str(": start it with another CUDA_VISIBLE_DEVICES")
            }
            Self::OtherContext => f.write_str(
                "the context is not its device's primary context, in which alone memory of other processes \
                 can be opened: use cuDevicePrimaryCtxRetain (cudarc's CudaContext::new does)",
            ),
            Self::Forked => f.write_str(
                "this process was forked from one that had initialised the CUDA driver, which can't be used \
                 in the copy: start processes by `spawn`, or before the first use of a GPU",
            ),
            Self::OutOfDeviceMemory { asked, free, ours, retired } => {
                write!(
                    f,
                    "the device has {free} bytes left, and {asked} were asked for: free tensors, or use \
                     another device (this process has {ours} bytes of it"
                )?;
                if *retired > 0 {
                    write!(f, ", {retired} of them retired, because a process died that could write there")?;
                }
                f.write_str(")")
            }
            Self::Gone => f.write_str(
                "the descriptor of this device memory is lost: have its sender make the tensor again",
            ),
            Self::PeerAccess { from, to } => write!(
                f,
                "the device {from} can't reach memory of the device {to} (see `nvidia-smi topo -p2p r`): \
                 copy the tensor by `to_device`"
            ),
            Self::DeviceLost { call, code } => {
                write!(f, "{call}: {} ({code}): ", codes::lost_name(*code).unwrap_or(UNNAMED))?;
                f.write_str(codes::help(*code).unwrap_or("the device is lost to this process"))?;
                f.write_str("; start another process")
            }
            Self::Driver { call, code, name, help } => {
                write!(f, "{call}: {name} ({code})")?;
                help.map_or(Ok(()), |help| write!(f, ": {help}"))
            }
            Self::ProducerDied { pid } => {
                f.write_str("the process ")?;
                pid.map_or(Ok(()), |pid| write!(f, "{pid} "))?;
                f.write_str(
                    "died before the data was complete, or the data was lost with it: have another \
                    process make it",
                )
            }
            Self::Capturing => f.write_str(
                "the stream is being captured into a graph, which can't order processes: end the capture, or \
                 use another stream",
            ),
            Self::TooManyStreams => f.write_str(
                "no clock is left for a further stream of the processes that share memory: drop some streams",
            ),
            Self::Unsupported { what, device } => {
                write!(f, "the device {device} can't be shared between processes: {what}")
            }
            Self::NotShareable { why } => write!(
                f,
                "other processes can't open the memory: {why}; copy it, or allocate it by `CudaTensor::empty`"
            ),
            Self::NotContiguous { shape } => write!(
                f,
                "the elements of this view of shape {shape:?} are not adjacent in its order: copy them \
                 first, by to_device()"
            ),
            Self::Malformed(why) => f.write_str(why),
            Self::Core(error) => error.fmt(f),
        }
    }
}

mp_core::readable_debug!(Error);

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Core(error) => error.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cuda_result_is_a_driver_error() {
        let error = Error::driver("cuMemCreate", 4321, || None);
        assert!(matches!(&error, Error::Driver { code: 4321, help: None, .. }));
        let expected =
            "cuMemCreate: a result that neither this version of mp-cuda nor the driver names (4321)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn context_losing_cuda_codes_are_device_losses() {
        for code in [46, 700, 719] {
            assert!(
                matches!(Error::driver("cuStreamQuery", code, || None), Error::DeviceLost { .. }),
                "{code}"
            );
        }
        assert!(matches!(Error::driver("cuStreamQuery", 400, || None), Error::Driver { .. }));
    }

    #[test]
    fn driver_versions_are_formatted_as_releases() {
        let text = Error::OldDriver { found: 11_040, needed: 11_070 }.to_string();
        assert!(text.contains("CUDA 11.4") && text.contains("CUDA 11.7"), "{text}");
    }
}
