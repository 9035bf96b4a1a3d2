//! Manager that serves objects to other programs. In the tests, the other program is the test program itself.

use mp_manager::{Manager, Methods, RemoteManager, RemoteProxy};
use mp_queue::Queue;
use mp_spawn::current_process;

use super::{DEADLINE, Gate, Noisy, manager, take};

pub const KEY: &[u8] = b"a secret";

/// Manager with `Noisy` objects, which report their drops. The gate stops their calls.
pub struct Served {
    pub manager: Manager,
    pub remote: RemoteManager,
    pub dropped: Queue<u32>,
    pub gate: Gate,
    pub address: String,
}

impl Served {
    /// Serves these methods at an address that no other test of this program uses.
    pub fn new(test: &str, methods: impl FnOnce(&Queue<u32>, &Gate) -> Methods<Noisy>) -> Served {
        // Also sets the key of the children.
        current_process().set_authkey(KEY);
        let (manager, dropped, gate) = (manager(), Queue::unbounded().unwrap(), Gate::new());
        manager.register(methods(&dropped, &gate)).unwrap();
        let address = format!("@mp-manager-{}-{test}", std::process::id());
        manager.serve(&*address, KEY).unwrap();
        let remote = RemoteManager::connect(&*address, KEY).unwrap().with_timeout(DEADLINE);
        Served { manager, remote, dropped, gate, address }
    }

    #[track_caller]
    pub fn create(&self, value: u64) -> RemoteProxy {
        self.remote.create("Noisy", value).unwrap()
    }

    /// Waits until the next object is dropped in the server.
    #[track_caller]
    pub fn one_is_dropped(&self) {
        assert_eq!(take(&self.dropped), self.manager.server_pid());
    }
}
