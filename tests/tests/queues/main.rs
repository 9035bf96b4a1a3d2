//! Queues, channels and pipes between real processes. (Under random kills: `queue_deaths`; as futures: `queue_futures`.)

mod bytes;
mod deserted;
mod kinds;
mod order;
mod waits;
