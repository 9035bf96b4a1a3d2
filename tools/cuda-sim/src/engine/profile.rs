//! Settings of a session: its devices and its behaviour. The engine reads them from its environment.

use std::env;
use std::time::Duration;

use crate::wire::DeviceInfo;

/// Configuration of the engine.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) devices: Vec<DeviceInfo>,
    /// Seed of the schedule, which selects the next stream to run.
    pub(crate) seed: u64,
    /// Delay before submitted work runs. Work for which a host waits runs earlier.
    pub(crate) lazy: Duration,
    /// Time for which work of a killed process continues.
    pub(crate) late: Duration,
    /// Largest number of events that other processes can open.
    pub(crate) events: usize,
    /// Duration after which a wait of a stream for a value is reported.
    pub(crate) stuck: Duration,
    /// Number of calls of all clients after which the first device is lost.
    pub(crate) lost_after: Option<u64>,
}

/// Parses a number in the environment.
///
/// An invalid number makes the start of the session fail.
fn number(name: &str, default: u64) -> Result<u64, String> {
    match env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text.parse().map_err(|_| format!("{name} is no number: {text:?}")),
    }
}

impl Config {
    pub(crate) fn from_env() -> Result<Self, String> {
        let milliseconds = |name, default| number(name, default).map(Duration::from_millis);
        let profile = env::var("MP_CUDA_SIM_PROFILE").unwrap_or_else(|_| "h100".to_owned());
        let lost = number("MP_CUDA_SIM_LOST_AFTER", u64::MAX)?;
        Ok(Self {
            devices: devices(&profile, number("MP_CUDA_SIM_MEMORY", 80 << 30)?)?,
            seed: number("MP_CUDA_SIM_SEED", 1)?,
            lazy: milliseconds("MP_CUDA_SIM_LAZY_MS", 2)?,
            late: milliseconds("MP_CUDA_SIM_LATE_MS", 0)?,
            events: usize::try_from(number("MP_CUDA_SIM_EVENTS", 20_000)?).unwrap_or(usize::MAX),
            stuck: milliseconds("MP_CUDA_SIM_STUCK_MS", 10_000)?,
            lost_after: (lost != u64::MAX).then_some(lost),
        })
    }
}

/// Nonzero attributes of the newest device, with names from NVIDIA's manual, `CU_DEVICE_ATTRIBUTE_…`.
const H100: [(i32, i32); 14] = [
    (1, 1024),  // MAX_THREADS_PER_BLOCK
    (16, 132),  // MULTIPROCESSOR_COUNT
    (41, 1),    // UNIFIED_ADDRESSING
    (75, 9),    // COMPUTE_CAPABILITY_MAJOR
    (83, 1),    // MANAGED_MEMORY
    (99, 1),    // HOST_REGISTER_SUPPORTED
    (102, 1),   // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),   // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (115, 1),   // MEMORY_POOLS_SUPPORTED
    (122, 1),   // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),   // CAN_USE_STREAM_WAIT_VALUE_NOR
    (125, 1),   // IPC_EVENT_SUPPORTED
    (1000, 12), // of the simulator: the driver's major version
    (1001, 80), // and minor, by 10
];

fn devices(profile: &str, bytes: u64) -> Result<Vec<DeviceInfo>, String> {
    let mut attributes = H100.to_vec();
    let mut count = 1;
    let mut set = |changes: &[(i32, i32)]| {
        for (attribute, value) in changes {
            attributes.retain(|(one, _)| one != attribute);
            attributes.push((*attribute, *value));
        }
    };
    for part in profile.split(',') {
        match part {
            "h100" | "mig" => {}
            "two-gpus" => count = 2,
            "apart" => {
                count = 2;
                set(&[(DeviceInfo::APART, 1)]);
            }
            // A device without guaranteed 64-bit memory operations.
            "old" => set(&[(75, 7), (122, 0), (123, 0), (1000, 11), (1001, 40)]),
            "no-memops" => set(&[(122, 0), (123, 0)]),
            "no-events" => set(&[(125, 0)]),
            "no-vmm" => set(&[(102, 0), (103, 0)]),
            other => {
                return Err(format!(
                    "MP_CUDA_SIM_PROFILE is some of h100, two-gpus, apart, old, mig, no-memops, no-events \
                     and no-vmm, separated by commas, and not {other:?}"
                ));
            }
        }
    }
    let device = |index: u32| {
        let mut uuid = *b"mp-cuda-sim gpu0";
        uuid[15] = b'0' + u8::try_from(index).unwrap_or(0);
        // Devices with other properties get other identities, because a family of processes has one order for
        // the streams of each device.
        let is_mig = profile.split(',').any(|part| part == "mig");
        let lacks = |attribute| attributes.contains(&(attribute, 0));
        uuid[11] = match () {
            () if is_mig => b'm',
            () if lacks(125) => b'h',
            () if lacks(122) => b'e',
            () => b' ',
        };
        let (name, bytes) = match is_mig {
            true => ("NVIDIA H100 MIG 1g.10gb (simulated)", bytes / 8),
            false => ("NVIDIA H100 (simulated)", bytes),
        };
        DeviceInfo { name: name.to_owned(), uuid, bytes, attributes: attributes.clone(), index }
    };
    Ok((0..count).map(device).collect())
}

impl DeviceInfo {
    /// Attribute that only the simulator has: 1 if no other device can access the memory of the device.
    pub(crate) const APART: i32 = 1002;

    pub(crate) fn attribute(&self, number: i32) -> i32 {
        self.attributes.iter().find(|(one, _)| *one == number).map_or(0, |(_, value)| *value)
    }
}

/// Returns the devices that `CUDA_VISIBLE_DEVICES` makes visible: numbers or prefixes of identities, up to
/// the first invalid one.
pub(crate) fn visible(devices: &[DeviceInfo], wanted: Option<&str>) -> Vec<DeviceInfo> {
    let Some(wanted) = wanted else { return devices.to_vec() };
    let find = |word: &str| {
        let by_uuid = |device: &&DeviceInfo| {
            word.starts_with("GPU-") && word.len() > 4 && uuid_text(&device.uuid).starts_with(word)
        };
        let index: Option<u32> = word.parse().ok();
        devices.iter().find(by_uuid).or_else(|| devices.iter().find(|device| Some(device.index) == index))
    };
    wanted.split(',').map_while(|word| find(word.trim()).cloned()).collect()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_keep_their_listed_order() {
        let two = devices("two-gpus", 1 << 30).unwrap();
        let seen = |wanted| visible(&two, wanted).iter().map(|device| device.index).collect::<Vec<_>>();
        assert_eq!(seen(None), [0, 1]);
        assert_eq!(seen(Some("1,0")), [1, 0]);
        assert_eq!(seen(Some("1,7,0")), [1], "up to the first invalid number");
        assert_eq!(seen(Some("")), [0_u32; 0]);
        assert_eq!(seen(Some(&uuid_text(&two[1].uuid))), [1]);
        assert!(devices("h200", 1).is_err());
    }
}
