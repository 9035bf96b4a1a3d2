//! Creation of an arena, attachment to a parent's arena, and operations on the arena for programs.
//!
//! # Safety
//! This module dereferences no pointers. Functions are `unsafe` because a caller that breaks their contract
//! could give other code access to the memory of all processes.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::alloc::Allocator;
use crate::alloc::stats::MemoryStats;
use crate::arena::state::{AllocState, Budget, Files, State};
use crate::arena::{Arena, CURRENT, MAKING};
use crate::blocking::reports as waits;
use crate::error::{Error, Result};
use crate::fork;
use crate::layout::{self, ArenaLayout, control, size_class};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::members::membership::MemberInfo;
use crate::recovery::Recovery;
use crate::setup::configure::{self, ArenaOptions};
use crate::setup::fd_store::Parcel;
use crate::setup::no_room_for_new;
use crate::setup::{Backing, attach, files, settings};
use crate::strategy::SharingStrategy;
use crate::sync::Ordering;
use crate::sys::identity::Identity;
use crate::sys::{directory, limits, memory, os, private_table, under_valgrind};
use crate::words::Member;

impl Arena {
    /// Returns the arena of this process's tree. The arena is the parent's if the parent passed one, and is
    /// created otherwise.
    ///
    /// # Errors
    /// [`Error::Os`] if the kernel refuses the file or its mapping, [`Error::OutOfMemory`] if the limits of
    /// the process (RLIMIT_AS, RLIMIT_FSIZE) are too low for even a small arena, [`Error::Forked`] in a
    /// process that was forked from a member.
    #[inline]
    pub fn current() -> Result<Self> {
        match CURRENT.get() {
            Some(arena) => arena.me().map(|_| *arena),
            None => first(),
        }
    }

    /// Returns the arena of this process in private memory, and creates it if this process has none.
    ///
    /// ```
    /// use mp_core::{Arena, Storage};
    ///
    /// let arena = Arena::local()?;
    /// assert!(arena.is_local());
    /// assert_eq!(Storage::new(arena, 3, 4)?.len(), 12);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Tensors, queues and messages work within this process. A local arena has no file, no lock and no other
    /// members, and starting a process is an error. Local arenas are for tests and for tools that don't
    /// support shared mappings, above all Miri (under which [`current`](Self::current) creates one).
    ///
    /// # Errors
    /// [`Error::ArenaExists`] if this process already has a shared arena. [`Error::Os`] or
    /// [`Error::OutOfMemory`] if memory is exhausted.
    pub fn local() -> Result<Self> {
        let _making = MAKING.lock();
        if let Some(&arena) = CURRENT.get() {
            arena.me()?;
            return if arena.is_local() { Ok(arena) } else { Err(has_one()) };
        }
        let configured = configure::settings()?;
        let most = if cfg!(miri) { ArenaLayout::MIN } else { unbounded_size().min(1 << 36) };
        let mut size = configured.size.unwrap_or(most);
        loop {
            let envelopes = configured.messages.unwrap_or(ArenaLayout::envelopes_for(size));
            match map_and_join(None, size, envelopes, None) {
                Err(Error::Os { .. } | Error::LimitExceeded(_))
                    if configured.size.is_none() && size > ArenaLayout::MIN =>
                {
                    size /= 2
                }
                done => return Ok(make_current(done?)),
            }
        }
    }

    /// Sets the size of this program's arena, before anything uses it.
    ///
    /// ```
    /// use mp_core::{Arena, ArenaOptions};
    ///
    /// Arena::configure(ArenaOptions::new().size(1 << 30).messages(100_000))?;
    /// let arena = Arena::current()?;
    /// assert_eq!((arena.size(), arena.most_messages()), (1 << 30, 100_352)); // rounded up to 512
    /// // From now on it can't be changed.
    /// assert!(Arena::configure(ArenaOptions::new()).is_err());
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// The environment may set options that are not set here (`MP_ARENA_SIZE` in bytes, `MP_ARENA_MESSAGES`;
    /// both accept `K`, `M`, `G`, `T`). Processes started by this process use its arena, at its size,
    /// regardless of their environment. Never waits for another process.
    ///
    /// # Errors
    /// [`Error::ArenaExists`] if this process already has an arena, its own or its parent's.
    /// [`Error::InvalidArgument`] for a number that is too small, [`Error::LimitExceeded`] for one that is
    /// too large. A size beyond the limits of the process (RLIMIT_AS, RLIMIT_FSIZE) is an error when the
    /// arena is created.
    pub fn configure(options: ArenaOptions) -> Result<()> {
        let options = options.checked()?;
        let _making = MAKING.lock();
        if CURRENT.get().is_some() || attach::is_pending() {
            return Err(Error::ArenaExists(
                "its own or its parent's, whose size is final: call Arena::configure in the program that \
                 creates it, before the first use of shared memory",
            ));
        }
        *configure::CHOSEN.lock() = options;
        Ok(())
    }

    /// Joins the arena in `fd`, and makes it the arena of this process.
    ///
    /// # Errors
    /// [`Error::NotAnArena`] or [`Error::Version`] if this build can't use the file, [`Error::ArenaFull`] if
    /// the arena has no free member slot, [`Error::Os`] if the file can't be mapped at its size.
    ///
    /// # Safety
    /// The file is an arena's, and was sent by a process of the same tree that got it from [`fd`](Self::fd).
    pub unsafe fn attach(fd: OwnedFd) -> Result<Self> {
        attach_to(fd)
    }

    /// Defers [`attach`](Self::attach) until this process first needs an arena. `joined` is then called once,
    /// with this process's tag. The process begins with its own settings, not with its parent's: see
    /// [`children_inherit_settings`](children_inherit_settings).
    ///
    /// # Safety
    /// Same as for [`attach`](Self::attach).
    #[inline]
    pub unsafe fn attach_later(fd: OwnedFd, joined: fn(Member)) {
        attach::put(fd, joined);
    }

    /// Returns the file of the arena, to pass to a child. The file stays open as long as the process lives.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file, [`Error::Os`] if no descriptor is available.
    ///
    /// # Safety
    /// The caller sends the file only to children that [`attach`](Self::attach) it. Reading, writing or
    /// mapping the file elsewhere gives access to all tensors of all processes. No descriptor of the same
    /// file may be closed in this process: closing it would drop this process's POSIX lock, one of two signs
    /// that the process is alive.
    pub unsafe fn fd(&self) -> Result<BorrowedFd<'static>> {
        Backing(*self).file_to_hand_down()
    }

    /// Returns the arena's words, to run [`Steps`](crate::mem::Steps) on.
    ///
    /// # Safety
    /// The caller changes words only by the protocols that they belong to, and only within memory that it
    /// holds.
    #[inline]
    pub unsafe fn words(&self) -> &'static (impl Mem + Copy + use<>) {
        self.map()
    }

    /// Returns the members, including dead ones that are not reclaimed yet.
    pub fn members(&self) -> Vec<MemberInfo> {
        Members(*self).members()
    }

    /// Counts the memory in the arena. Takes some milliseconds for a million tensors.
    #[doc(alias("memory_allocated", "memory_reserved", "max_memory_allocated", "memory_summary"))]
    pub fn memory_stats(&self) -> MemoryStats {
        Allocator(*self).memory_stats()
    }

    /// Returns the pages of free blocks to the kernel. The result is the number of bytes returned.
    ///
    /// The next tensors of these sizes fill cold memory again, at a fifth of the speed. Blocks below 16 KiB
    /// share their pages, and keep them. The memory of messages (256 bytes each) is returned in runs of 16
    /// KiB that no process uses. While any process of the program waits, the memory of messages is also
    /// returned automatically, some seconds after a burst.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn empty_cache(&self) -> Result<u64> {
        Allocator(*self).empty_cache()
    }

    /// Sets the number of bytes of large free blocks (2 MiB and more) that may keep pages. The limit applies
    /// to the sum over all members.
    ///
    /// ```
    /// use mp_core::{Arena, Storage};
    ///
    /// let arena = Arena::current()?;
    /// arena.set_cache_limit(8 << 20);
    /// drop(Storage::new(arena, 64 << 20, 1)?); // too large to be kept
    /// assert!(arena.memory_stats().cached <= 8 << 20);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// The default is a quarter of the memory that was available when the arena was created. With 0, nothing
    /// is cached, and every large tensor fills cold memory. With `u64::MAX`, everything is cached until
    /// memory is exhausted or [`empty_cache`](Self::empty_cache) is called. The thread that drops a tensor
    /// returns the excess, which takes some milliseconds for 64 MiB. A thread checks after it has freed an
    /// eighth of the limit, so each thread that frees may exceed the limit by that much.
    #[doc(alias = "garbage_collection_threshold")]
    pub fn set_cache_limit(&self, bytes: u64) {
        self.map().store(Word::at(control::CACHE_LIMIT), bytes);
    }

    /// Returns the number of bytes of large free blocks that may keep their pages.
    pub fn cache_limit(&self) -> u64 {
        self.map().load(Word::at(control::CACHE_LIMIT))
    }

    /// Limits the memory of the arena, in bytes of reserved pages, for all members. 0 means no limit.
    pub fn set_budget(&self, bytes: u64) {
        self.map().store(Word::at(control::BUDGET), bytes);
    }

    /// Enables or disables huge pages (2 MiB on x86-64) for all members. If enabled, members request huge
    /// pages for blocks that are at least as large as one.
    ///
    /// ```
    /// let arena = mp_core::Arena::current()?;
    /// match arena.set_huge_pages(true) {
    ///     Ok(()) => println!("tensors from 2 MiB up get huge pages from now on"),
    ///     // Most kernels begin with `never`; the error names the file to write `advise` into.
    ///     Err(why) => println!("{why}"),
    /// }
    /// # arena.set_huge_pages(false)?;
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Huge pages take less time at the first touch and cause fewer TLB misses afterwards. They are a hint
    /// (`MADV_HUGEPAGE`): if memory is too fragmented, the kernel uses small pages. Existing pages, including
    /// pages of cached blocks, are unchanged (see [`empty_cache`](Self::empty_cache)). Each run of up to 64
    /// blocks of one size counts as one more mapping in the process that allocated it.
    ///
    /// Only pages of a hugetlbfs are certainly huge: mount one, and select it with
    /// [`set_sharing_directory`](crate::set_sharing_directory).
    ///
    /// The NUMA node of a page is chosen when the page is created, by the policy of the allocating thread
    /// (`numactl`, `set_mempolicy(2)`). Children inherit the policy as usual.
    ///
    /// # Errors
    /// [`Error::Os`] if this kernel does not support huge pages for shared memory. Nothing is changed then.
    /// [`Error::Local`] if the arena's memory is private to this process.
    pub fn set_huge_pages(&self, on: bool) -> Result<()> {
        Allocator(*self).set_huge_pages(on)
    }

    /// Returns the maximum number of messages in flight in all queues together: see
    /// [`ArenaOptions::messages`](crate::setup::configure::ArenaOptions::messages).
    pub fn most_messages(&self) -> u32 {
        self.layout().envelopes
    }

    /// Finds dead members, and recovers and reclaims their resources. Returns the number of reclaimed
    /// members.
    ///
    /// Cheap when no member died (1–3 µs per member, more with hundreds of members). Waiting functions call
    /// [`Recovery::reclaim_if_due`], and parents reclaim each child that has ended, so programs rarely need
    /// to call this function.
    ///
    /// A process whose program is not linked with the layer of queues (`mp-queue`) does not reclaim dead
    /// members whose program was linked with that layer. Members with that layer reclaim them.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn reclaim(&self) -> Result<usize> {
        Recovery(*self).reclaim()
    }

    /// Enables or disables the detection of deadlocks between locks, for all members. Enabled by default.
    ///
    /// ```
    /// let arena = mp_core::Arena::current()?;
    /// arena.set_deadlock_detection(false); // threads in a cycle of locks now wait forever
    /// arena.set_deadlock_detection(true);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// A process with `MP_DEADLOCK=off` in its environment never searches for deadlocks, and no other process
    /// finds a deadlock that includes it. The detection costs nothing for a lock that is acquired within 100
    /// ms, and some microseconds each 100 ms after that. A deadlock is returned as
    /// [`LockError::Deadlock`](crate::LockError::Deadlock).
    pub fn set_deadlock_detection(&self, on: bool) {
        self.map().store(Word::at(control::NO_DEADLOCKS), u64::from(!on));
    }
}

/// Returns `true` if this process has settings (sharing strategy, directory) that a child must take over
/// at its start.
pub fn children_inherit_settings() -> bool {
    settings::is_set()
}

#[cold]
fn first() -> Result<Arena> {
    if cfg!(miri) {
        return Arena::local();
    }
    let (settings, _) = settings::settings();
    let (arena, joined) = {
        let _making = MAKING.lock();
        match (CURRENT.get(), attach::take()?) {
            (Some(arena), _) => (*arena, None),
            (None, Some((fd, joined))) => (attach_now(fd).inspect_err(attach::failed)?, Some(joined)),
            (None, None) => {
                fork::check_creation()?;
                (make_current(create(&settings)?), None)
            }
        }
    };
    files::watch_the_end();
    settings::republish();
    if let Some(joined) = joined {
        joined(arena.me()?);
    }
    Ok(arena)
}

/// Name of the arena's file, as `/proc` shows it.
pub(crate) const FILE_NAME: &str = "mp-arena";

/// Returns the size of an arena that no setting or limit bounds. Under valgrind the arena is small:
/// valgrind would map 32 GiB, and memcheck scans all of it for pointers when a process ends. The scan
/// takes 7 s per GiB and touches every page.
fn unbounded_size() -> u64 {
    if under_valgrind() { 256 << 20 } else { 1 << 40 }
}

/// Makes `arena` the arena of this process, which has none yet. The caller holds `MAKING`.
fn make_current(arena: Arena) -> Arena {
    if let Ok(me) = arena.me() {
        waits::publish(arena, me);
    }
    waits::listen();
    *CURRENT.get_or_init(|| arena)
}

fn has_one() -> Error {
    Error::ArenaExists("attach to another one before anything uses shared memory")
}

/// Returns `true` if this process has an arena, or joins its parent's arena when it first needs an arena.
pub(crate) fn has_or_will() -> bool {
    CURRENT.get().is_some() || attach::is_pending()
}

fn attach_to(fd: OwnedFd) -> Result<Arena> {
    let making = MAKING.lock();
    let arena = attach_now(fd)?;
    drop(making);
    files::watch_the_end();
    settings::inherit(arena);
    Ok(arena)
}

/// Returns `size` if an arena may have this size in bytes. The layout of an arena can be computed only for
/// these sizes.
pub(crate) fn check_size(size: u64) -> Result<u64> {
    let why = || Error::NotAnArena(format!("{size} bytes are too few or too many for one"));
    (ArenaLayout::MIN..=configure::MOST_SIZE).contains(&size).then_some(size).ok_or_else(why)
}

/// Attaches this process to the arena in `fd`. The caller holds `MAKING`.
fn attach_now(fd: OwnedFd) -> Result<Arena> {
    if CURRENT.get().is_some() {
        return Err(has_one());
    }
    let (fd, parcel) = Parcel::open(fd)?;
    let size = check_size(files::verify(fd.as_fd())?)?;
    // An open file description of our own: see `sys::locks`. The received descriptor is closed before any
    // lock is taken, because closing any descriptor of a file drops the POSIX locks of the process on
    // that file.
    let own = memory::reopen(fd.as_fd())?;
    if !SharingStrategy::FileDescriptor.supported() {
        // The arena is a named file, which the parent keeps locked as long as the parent lives.
        directory::lock_shared(own.as_fd()).map_err(os("flock of an arena"))?;
    }
    drop(fd);
    let header = memory::read_words(own.as_fd())?;
    let envelopes = ArenaLayout::envelopes_in(&header)?;
    let arena = map_and_join(Some(own), size, envelopes, Some(&header))?;
    arena.files().unpack(parcel);
    Backing(arena).hold_extents();
    Ok(make_current(arena))
}

fn create(settings: &settings::Settings) -> Result<Arena> {
    let _: SharingStrategy = settings.strategy.name().parse()?;
    files::clean_default();
    let (space, space_limit) = limits::address_space();
    let (file, file_limit) = limits::file_size();
    // Named files need address space of twice this size in addition, and the rest of the process needs
    // address space, too.
    let (most, limit) = if space / 4 < file { (space / 4, space_limit) } else { (file, file_limit) };
    let configured = configure::settings()?;
    let mut size = configured.size.unwrap_or(unbounded_size());
    while configured.size.is_none() && size > most && size > ArenaLayout::MIN {
        size /= 2;
    }
    if size > most {
        return Err(Error::OutOfMemory { asked: size, left: most, limit: limit.into() });
    }
    loop {
        let made = if SharingStrategy::FileDescriptor.supported() {
            memory::create(FILE_NAME, size)
        } else {
            files::create_arena_file(&settings.directory, size)
        };
        let envelopes = configured.messages.unwrap_or(ArenaLayout::envelopes_for(size));
        let made = made.and_then(|fd| map_and_join(Some(fd), size, envelopes, None));
        if made.is_err() {
            files::remove_arena_file();
        }
        match made {
            // Valgrind, sanitizers and small address spaces allow only smaller mappings.
            Err(Error::Os { .. }) if configured.size.is_none() && size > ArenaLayout::MIN => size /= 2,
            other => return other,
        }
    }
}

/// Maps an arena, and makes this process a member. `header` contains the first words of an existing arena, or
/// is `None` for a new arena. A mapping is never removed, so the header is checked before the file is mapped.
fn map_and_join(
    fd: Option<OwnedFd>,
    size: u64,
    envelopes: u32,
    header: Option<&[u64; ArenaLayout::HEADER_WORDS]>,
) -> Result<Arena> {
    let layout = ArenaLayout::new(size, size_class::CLASSES, envelopes);
    if layout.data_at >= size {
        let why = format!(
            "an arena of {size} bytes has no room for data beside {envelopes} messages in flight: make it \
             larger, or for fewer (Arena::configure)"
        );
        return Err(Error::InvalidArgument(why));
    }
    // The boot id is not checked: the file was received from a living process.
    let checked = header.map(|header| layout.check(|word| header[(word.offset() / 8) as usize], None));
    let id = checked.transpose()?.unwrap_or_else(memory::random_u64);
    let file = fd.as_ref().map(AsFd::as_fd);
    let map = files::map_own(file, size, layout.space())?;
    if header.is_none() {
        if let Some(file) = file {
            let len = control::FIRST_BYTES;
            memory::commit(file, 0, len).map_err(|e| no_room_for_new(file, len, e))?;
        }
        map.u64_at(control::FRONTIER).store(layout.data_at, Ordering::Release);
        map.u64_at(control::CACHE_LIMIT).store(limits::memory_left().0 / 4, Ordering::Release);
        layout.write(&map, id, memory::boot_id(), memory::user());
    }
    // The identity of this process follows the table of its holds, on its own cache line in the same
    // mapping.
    let blocks = (layout.slabs * layout::SLAB_BLOCKS) as usize;
    let (holds, line) = private_table(blocks + 16)?.split_at(blocks);
    // The real tag is set once this process is a member. Until then `me` must not be called.
    let state = State {
        map,
        layout,
        id,
        identity: Identity::new(&line[8], u64::MAX),
        holds,
        files: Files::new(fd),
        alloc: AllocState::new(Budget::of_this_process()),
    };
    let state = Box::into_raw(Box::new(state));
    // SAFETY: just made, and freed only below, where no handle is left.
    let arena = Arena(unsafe { &*state });
    match Members(arena).join() {
        Ok(me) => {
            arena.0.identity.set(me.raw() + 1);
            Ok(arena)
        }
        Err(error) => {
            // Closes the file. SAFETY: made by `Box::into_raw` above; `join` keeps no copy of the handle.
            drop(unsafe { Box::from_raw(state) });
            Err(error)
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::mem::HeapMem;
    use crate::sys::locks;

    #[test]
    fn arena_size_out_of_range_is_refused() {
        for size in [0, ArenaLayout::MIN - 1, configure::MOST_SIZE + 1, i64::MAX as u64] {
            let checked = check_size(size);
            assert!(matches!(checked, Err(Error::NotAnArena(_))), "{size}: {checked:?}");
        }
        for size in [ArenaLayout::MIN, configure::MOST_SIZE] {
            assert_eq!(check_size(size).unwrap(), size);
        }
    }

    /// The arena is full: another open file description has the locks of all slots.
    #[test]
    #[cfg_attr(miri, ignore = "makes files")]
    fn join_of_full_arena_closes_its_file() {
        let (size, envelopes) = (ArenaLayout::MIN, ArenaLayout::envelopes_for(ArenaLayout::MIN));
        let layout = ArenaLayout::new(size, size_class::CLASSES, envelopes);
        let words = HeapMem::new(64);
        layout.write(&words, 7, 0, memory::user());
        let header = std::array::from_fn(|i| words.load(Word::at(8 * i as u64)));
        let file = memory::create("mp-full", size).unwrap();
        let others = memory::reopen(file.as_fd()).unwrap();
        assert!((0..layout.members).all(|slot| locks::acquire(others.as_fd(), slot).unwrap()));
        let joined = map_and_join(Some(file), size, envelopes, Some(&header));
        assert!(matches!(joined, Err(Error::ArenaFull { .. })), "{joined:?}");
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let paths = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        assert_eq!(paths.filter(|path| path.to_string_lossy().contains("mp-full")).count(), 1);
    }
}
