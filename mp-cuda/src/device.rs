//! Devices: the GPUs that this process sees.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::context::{BoundContext, PrimaryContext};
use crate::error::{Error, Result};
use crate::uuid::Uuid;

/// Abilities of a device and its driver that are required for sharing between processes. Numbers in
/// parentheses are values of `CUdevice_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// `true` if the driver can allocate device memory without mapping it, by virtual memory management
    /// (102).
    pub virtual_memory: bool,
    /// `true` if unmapped device memory can be exported as a file descriptor (103).
    pub memory_by_descriptor: bool,
    /// `true` if streams can write 64-bit words and wait for them (122).
    pub memory_operations: bool,
    /// `true` if memory of the host can be registered for access by the device (99).
    pub host_registration: bool,
    /// `true` if other processes can open events of the device (125).
    pub events_between_processes: bool,
    /// Compute capability: major and minor version.
    pub compute: (u32, u32),
}

/// GPU that this process sees.
///
/// ```no_run
/// use mp_cuda::Device;
///
/// let first = Device::new(0)?;
/// let same = Device::by_uuid(first.uuid())?; // the number may differ in another process
/// assert_eq!(first, same);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// The value retains the device's primary context, which cudarc, torch and the CUDA runtime use, too. The
/// context ends with its last user in this process. Clones refer to the same device. Each method makes the
/// context current on the calling thread until the method returns.
///
/// In a copy of a process by `fork`, each call returns [`Error::Forked`], and dropping the device does
/// nothing.
#[doc(alias = "torch.device")]
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

struct DeviceInner {
    uuid: Uuid,
    /// Number by which the driver identifies the device in this process.
    number: c_int,
    primary: PrimaryContext,
}

impl Device {
    /// Returns the device with this number, from 0, among the devices that this process sees.
    ///
    /// # Errors
    /// No driver or no device, with advice; [`InvalidDevice`](Error::InvalidDevice) for an invalid number;
    /// [`Forked`](Error::Forked) in a copy of a process that had used the driver.
    #[doc(alias = "cuDeviceGet")]
    pub fn new(ordinal: u32) -> Result<Self> {
        let driver = Driver::get()?;
        let count = driver.device_count()?;
        if count == 0 {
            return Err(Error::NoDevice);
        }
        if ordinal >= count {
            return Err(Error::InvalidDevice { ordinal, count });
        }
        let number = driver.device_get(ordinal)?;
        Self::of(driver, number, PrimaryContext::retain(driver, number)?)
    }

    pub(crate) fn of(driver: &Driver, number: c_int, primary: PrimaryContext) -> Result<Self> {
        let uuid = Uuid(driver.device_uuid(number)?);
        Ok(Self(Arc::new(DeviceInner { uuid, number, primary })))
    }

    /// Returns the device with this identity, regardless of its number in this process.
    ///
    /// # Errors
    /// [`UnknownDevice`](Error::UnknownDevice) if this process doesn't see it; errors of [`new`](Self::new).
    pub fn by_uuid(uuid: Uuid) -> Result<Self> {
        let driver = Driver::get()?;
        let mut visible = Vec::new();
        for ordinal in 0..driver.device_count()? {
            let number = driver.device_get(ordinal)?;
            let one = Uuid(driver.device_uuid(number)?);
            if one == uuid {
                return Self::of(driver, number, PrimaryContext::retain(driver, number)?);
            }
            visible.push(one);
        }
        Err(Error::UnknownDevice { uuid, visible })
    }

    /// Returns all devices that this process sees, in the order of their numbers.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new); [`NoDevice`](Error::NoDevice) if this process sees no device.
    pub fn all() -> Result<Vec<Self>> {
        (0..Self::count()?).map(Self::new).collect()
    }

    /// Returns the number of devices that this process sees.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    #[doc(alias = "torch.cuda.device_count")]
    pub fn count() -> Result<u32> {
        Driver::get()?.device_count()
    }

    /// Returns the identity of the device.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// Returns NVIDIA's name of the device.
    ///
    /// # Errors
    /// Errors of the driver.
    #[doc(alias = "torch.cuda.get_device_name")]
    pub fn name(&self) -> Result<String> {
        Driver::get()?.device_name(self.0.number)
    }

    /// Returns the size of the device memory, in bytes.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn total_memory(&self) -> Result<u64> {
        Driver::get()?.total_memory(self.0.number)
    }

    /// Returns the number of bytes of device memory that no process has allocated.
    ///
    /// # Errors
    /// Errors of the driver.
    #[doc(alias = "torch.cuda.mem_get_info")]
    pub fn free_memory(&self) -> Result<u64> {
        Ok(self.bind()?.memory()?.0)
    }

    /// Returns `true` if the device's streams can access memory of another device.
    ///
    /// # Errors
    /// Errors of the driver.
    #[doc(alias = "torch.cuda.can_device_access_peer")]
    pub fn can_access(&self, other: &Self) -> Result<bool> {
        Driver::get()?.can_access_peer(self.0.number, other.0.number)
    }

    /// Returns the abilities of the device.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn attributes(&self) -> Result<Attributes> {
        let driver = Driver::get()?;
        let get = |attribute| driver.attribute(attribute, self.0.number);
        let has = |attribute| get(attribute).map(|value| value != 0);
        let number = |attribute| get(attribute).map(|value| u32::try_from(value).unwrap_or(0));
        Ok(Attributes {
            virtual_memory: has(102)?,
            memory_by_descriptor: has(103)?,
            memory_operations: has(122)?,
            host_registration: has(99)?,
            events_between_processes: has(125)?,
            compute: (number(75)?, number(76)?),
        })
    }

    /// Returns the number by which the driver identifies the device in this process.
    pub(crate) fn number(&self) -> c_int {
        self.0.number
    }

    /// Makes the device's context current on this thread, until the returned value is dropped.
    pub(crate) fn bind(&self) -> Result<BoundContext<'_>> {
        self.0.primary.bind()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.uuid() == other.uuid()
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("uuid", &self.0.uuid).field("number", &self.0.number).finish()
    }
}
