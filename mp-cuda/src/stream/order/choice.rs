//! Choice of the [`Order`] of a device's streams. The first process of the program that uses the device
//! chooses the order for all processes.

use mp_core::Arena;
use mp_core::clocks::Clocks;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::codes;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::order::{Order, table};

/// Method by which the streams of a device report progress (*tick*) and wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum TickMethod {
    /// Streams write words of the clock table, and wait for words. The value is the address of the table for
    /// the device.
    Words(u64),
    /// Streams record events of the driver, and wait for events.
    Events,
    /// Hosts wait for streams.
    Hosts,
}

/// Devices with their methods. The list retains each device, and so the context for which the method is
/// valid.
static METHODS: PerProcess<Mutex<Vec<(Device, TickMethod)>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Returns the key of a device in the arena: the FNV-1a hash of its identity.
pub(super) fn key(device: &Device) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    device.uuid().0.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Returns the order that has this number in shared memory.
fn order_of(number: u8) -> Result<Order> {
    let order =
        [Order::Clocks, Order::IpcEvents, Order::Host].into_iter().find(|order| *order as u8 == number);
    order.ok_or_else(|| Error::Malformed(format!("{number} is not an order of streams")))
}

/// Returns the method of a device's streams.
///
/// # Errors
/// [`Error::Unsupported`] if the streams don't support the chosen order; errors of the driver.
pub(super) fn method(device: &Device) -> Result<TickMethod> {
    let mut methods = METHODS.lock();
    if let Some((_, method)) = methods.iter().find(|(one, _)| one == device) {
        return Ok(*method);
    }
    let clocks = Clocks(Arena::current()?);
    let method = match clocks.order(key(device))? {
        Some(chosen) => method_for(device, order_of(chosen)?)?,
        None => {
            let (order, method) = best(device)?;
            match order_of(clocks.choose_order(key(device), order as u8)?)? {
                chosen if chosen == order => method,
                // Another process has chosen first.
                chosen => method_for(device, chosen)?,
            }
        }
    };
    methods.push((device.clone(), method));
    Ok(method)
}

/// Returns the order of a device's streams.
pub(super) fn order(device: &Device) -> Result<Order> {
    Ok(match method(device)? {
        TickMethod::Words(_) => Order::Clocks,
        TickMethod::Events => Order::IpcEvents,
        TickMethod::Hosts => Order::Host,
    })
}

/// Returns `true` if the device's streams wait for events of the driver, or if a thread is choosing the
/// order.
pub(super) fn has_events_here(device: &Device) -> bool {
    let Some(methods) = METHODS.try_lock() else { return true };
    methods.iter().any(|(one, method)| one == device && matches!(method, TickMethod::Events))
}

/// Returns `true` if the error means that the driver never lets the device access the clock table.
fn is_refused(error: &Error) -> bool {
    use codes::{NOT_PERMITTED, NOT_SUPPORTED};
    matches!(error, Error::Driver { code: NOT_PERMITTED | NOT_SUPPORTED, .. })
}

/// Returns the first order in [`Order`] that a device supports, and its method.
fn best(device: &Device) -> Result<(Order, TickMethod)> {
    if has_words(device)? {
        match table::base(device) {
            Ok(base) => return Ok((Order::Clocks, TickMethod::Words(base))),
            Err(error) if is_refused(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(if has_events(device)? {
        (Order::IpcEvents, TickMethod::Events)
    } else {
        (Order::Host, TickMethod::Hosts)
    })
}

fn method_for(device: &Device, order: Order) -> Result<TickMethod> {
    let unsupported = |what| Error::Unsupported { what, device: device.uuid() };
    match order {
        Order::Clocks if has_words(device)? => match table::base(device) {
            Err(error) if is_refused(&error) => Err(unsupported(
                "other processes order its streams by words that these write, and the driver doesn't let it \
                 reach them in this process: give all processes the same rights and limits (`ulimit -l`)",
            )),
            base => base.map(TickMethod::Words),
        },
        Order::Clocks => Err(unsupported(
            "other processes order its streams by words that these write, which this process's driver can't: \
             give all the same driver",
        )),
        Order::IpcEvents if has_events(device)? => Ok(TickMethod::Events),
        Order::IpcEvents => Err(unsupported(
            "other processes order its streams by CUDA's events between processes, which this process's \
             driver doesn't have: give all the same driver",
        )),
        Order::Host => Ok(TickMethod::Hosts),
    }
}

/// Returns `true` if a test disables this ability of devices, so that all orders can be tested on one device.
fn is_without(what: &str) -> bool {
    cfg!(feature = "inject")
        && std::env::var("MP_CUDA_WITHOUT").is_ok_and(|all| all.split(',').any(|one| one == what))
}

fn has_words(device: &Device) -> Result<bool> {
    if is_without("no-memops") {
        return Ok(false);
    }
    let attributes = device.attributes()?;
    Ok(attributes.memory_operations && attributes.host_registration && device.bind()?.has_stream_words())
}

fn has_events(device: &Device) -> Result<bool> {
    if is_without("no-events") {
        return Ok(false);
    }
    Ok(device.attributes()?.events_between_processes && device.bind()?.has_host_calls())
}
