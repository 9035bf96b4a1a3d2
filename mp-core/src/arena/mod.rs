//! The arena: a shared memory region for a whole tree of processes.
//!
//! The arena is a sparse, sealed memfd that each process maps once. Positions in it are stored as offsets.
//! The first process that needs the arena creates it ([`Arena::current`]). Child processes attach to their
//! parent's arena. Tensor data may also be stored in named files, which are mapped after the memfd in the
//! same address range (`extent`).

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use crate::alloc::budget::Budget;
use crate::alloc::handles::Hold;
use crate::error::{Error, Result};
use crate::layout::{self, Layout, control, envelope as field, size_class};
use crate::mem::{Column, Word};
use crate::members::intents;
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::setup::fd_store::Parcel;
use crate::setup::files::{self, Files};
use crate::setup::{attach, configure, strategy};
use crate::steps::{BlockAt, INLINE_SEATS, PAGE_HEADER};
use crate::sync::Ordering;
use crate::sync::shared::{AtomicU32, AtomicU64};
use crate::sys::{Mapping, directory, identity::Identity, limits, memory, os, private_table, under_valgrind};
use crate::waiting::reports as waits;
use crate::words::{BlockId, Member, SeatAt};

/// Cursor of a class in which this process has not yet searched for a block.
pub(crate) const NO_CURSOR: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) map: Mapping,
    pub(crate) files: Files,
    pub(crate) layout: Layout,
    pub(crate) id: u64,
    pub(crate) identity: Identity,
    pub(crate) holds: &'static [AtomicU64],
    pub(crate) populated: Mutex<Populated>,
    /// Most recent block that this process found, for each class.
    pub(crate) cursors: Box<[AtomicU32]>,
    pub(crate) budget: Budget,
}

/// Large blocks whose pages this process has mapped. The set is valid until a process returns pages to the
/// kernel.
#[derive(Debug, Default)]
pub(crate) struct Populated {
    pub(crate) trims: u64,
    /// Offset and length of each block.
    pub(crate) blocks: HashMap<BlockId, (u64, u64)>,
}

/// Handle to the shared region that this process is a member of. Copying the handle copies a reference.
///
/// ```
/// let arena = mp_core::Arena::current()?;
/// println!("{arena:?}: {} members", arena.members().len());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// The arena lives as long as the process: its memory is never unmapped. When the process ends, normally or
/// not, the other members release everything it held.
#[derive(Clone, Copy)]
pub struct Arena(pub(crate) &'static Inner);

/// Compares by identity. A process has one arena. In a forked child, the parent's arena differs from the
/// arena that the child has joined.
impl PartialEq for Arena {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
impl Eq for Arena {}

/// Arena of this process, if any. The thread that creates or attaches the arena holds `MAKING`.
pub(crate) static CURRENT: PerProcess<OnceLock<Arena>> =
    PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
pub(crate) static MAKING: PerProcess<Mutex<()>> = PerProcess::new([const { Mutex::new(()) }; GENERATIONS]);

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let me = self.me();
        f.debug_struct("Arena")
            .field("id", &format_args!("{:016x}", self.0.id))
            .field("size", &format_args!("{}", crate::error::ByteSize(self.0.layout.size)))
            .field("me", &me.as_ref().map_or("forked", |_| "member"))
            .field("member", &me.ok())
            .finish_non_exhaustive()
    }
}

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
            None => Self::first(),
        }
    }

    /// Returns the arena of this process and its member tag, if this process has joined an arena.
    pub(crate) fn of_this_process() -> Option<(Self, Member)> {
        let arena = *CURRENT.get()?;
        Some((arena, arena.me().ok()?))
    }

    #[cold]
    fn first() -> Result<Self> {
        if cfg!(miri) {
            return Self::local();
        }
        let (settings, _) = strategy::settings();
        let (arena, joined) = {
            let _making = MAKING.lock();
            match (CURRENT.get(), attach::take()?) {
                (Some(arena), _) => (*arena, None),
                (None, Some((fd, joined))) => {
                    (Self::attach_now(fd).inspect_err(attach::failed)?, Some(joined))
                }
                (None, None) => (Self::make_current(Self::create(&settings)?), None),
            }
        };
        files::watch_the_end();
        arena.publish_own_settings();
        if let Some(joined) = joined {
            joined(arena.me()?);
        }
        Ok(arena)
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
            return if arena.is_local() { Ok(arena) } else { Err(Self::has_one()) };
        }
        let configured = configure::settings()?;
        let most = if cfg!(miri) { Layout::MIN } else { Self::most().min(1 << 36) };
        let mut size = configured.size.unwrap_or(most);
        loop {
            let envelopes = configured.messages.unwrap_or(Layout::envelopes_for(size));
            match Self::map_and_join(None, size, envelopes, Some(())) {
                Err(Error::Os { .. } | Error::LimitExceeded(_))
                    if configured.size.is_none() && size > Layout::MIN =>
                {
                    size /= 2
                }
                done => return Ok(Self::make_current(done?)),
            }
        }
    }

    /// Returns the size of an arena that no setting or limit bounds. Under valgrind the arena is small:
    /// valgrind would map 32 GiB, and memcheck scans all of it for pointers when a process ends. The scan
    /// takes 7 s per GiB and touches every page.
    fn most() -> u64 {
        if under_valgrind() { 256 << 20 } else { 1 << 40 }
    }

    /// Makes `arena` the arena of this process. Called under the lock, while this process has no arena.
    fn make_current(arena: Self) -> Self {
        if let Ok(me) = arena.me() {
            waits::publish(arena, me);
        }
        waits::listen();
        *CURRENT.get_or_init(|| arena)
    }

    fn has_one() -> Error {
        Error::ArenaExists("attach to another one before anything uses shared memory")
    }

    /// Returns the arena of this process, if it already has one.
    pub fn get() -> Option<Self> {
        CURRENT.get().copied().filter(|a| a.is_here())
    }

    /// Returns `true` if this process has an arena, or will join its parent's when it first needs one.
    pub(crate) fn has_or_will() -> bool {
        CURRENT.get().is_some() || attach::is_pending()
    }

    pub(crate) fn attach_to(fd: OwnedFd) -> Result<Self> {
        let making = MAKING.lock();
        let arena = Self::attach_now(fd)?;
        drop(making);
        files::watch_the_end();
        arena.inherit_settings();
        Ok(arena)
    }

    /// Attaches this process to the arena in `fd`. Called under the lock.
    fn attach_now(fd: OwnedFd) -> Result<Self> {
        if CURRENT.get().is_some() {
            return Err(Self::has_one());
        }
        let (fd, parcel) = Parcel::open(fd)?;
        let size = files::verify(fd.as_fd())?;
        if size < Layout::MIN {
            return Err(Error::NotAnArena(format!("{size} bytes are too few for one")));
        }
        // An open file description of our own: see `sys::locks`. The received descriptor is closed before any
        // lock is taken, because closing any descriptor of a file drops the POSIX locks of the process on
        // that file.
        let own = memory::reopen(fd.as_fd())?;
        if !strategy::SharingStrategy::FileDescriptor.supported() {
            // A named file, which the parent holds as long as the parent lives.
            directory::lock_shared(own.as_fd()).map_err(os("flock of an arena"))?;
        }
        drop(fd);
        let said = memory::read_word(own.as_fd(), Layout::ENVELOPES_AT)?;
        let envelopes = Layout::possible_envelopes(said).ok_or_else(|| {
            Error::NotAnArena(format!("it says that it is for {said} messages on their way"))
        })?;
        let arena = Self::map_and_join(Some(own), size, envelopes, None)?;
        arena.unpack(parcel);
        arena.hold_extents();
        Ok(Self::make_current(arena))
    }

    fn create(settings: &strategy::Settings) -> Result<Self> {
        let _: strategy::SharingStrategy = settings.strategy.name().parse()?;
        files::clean_default();
        let (space, space_limit) = limits::address_space();
        let (file, file_limit) = limits::file_size();
        // Named files take twice this size in addresses on top, and the rest of the process needs address
        // space too.
        let (most, limit) = if space / 4 < file { (space / 4, space_limit) } else { (file, file_limit) };
        let configured = configure::settings()?;
        let mut size = configured.size.unwrap_or(Self::most());
        while configured.size.is_none() && size > most && size > Layout::MIN {
            size /= 2;
        }
        if size > most {
            return Err(Error::OutOfMemory { asked: size, left: most, limit: limit.into() });
        }
        loop {
            let made = if strategy::SharingStrategy::FileDescriptor.supported() {
                memory::create("mp-arena", size)
            } else {
                files::create_arena_file(&settings.directory, size)
            };
            let envelopes = configured.messages.unwrap_or(Layout::envelopes_for(size));
            let made = made.and_then(|fd| Self::map_and_join(Some(fd), size, envelopes, Some(())));
            if made.is_err() {
                files::remove_arena_file();
            }
            match made {
                // Less can be mapped under valgrind, under sanitizers and in small address spaces.
                Err(Error::Os { .. }) if configured.size.is_none() && size > Layout::MIN => size /= 2,
                other => return other,
            }
        }
    }

    fn map_and_join(fd: Option<OwnedFd>, size: u64, envelopes: u32, new: Option<()>) -> Result<Self> {
        let layout = Layout::new(size, size_class::CLASSES, envelopes);
        if layout.data_at >= size {
            let why = format!(
                "an arena of {size} bytes has no room for data beside {envelopes} messages on their way: \
                make it \
                 larger, or for fewer (Arena::configure)"
            );
            return Err(Error::InvalidArgument(why));
        }
        let file = fd.as_ref().map(AsFd::as_fd);
        let map = files::map_own(file, size, layout.space())?;
        // An attaching process got the file from a living process, so in this boot. Only a new arena needs
        // the boot ID.
        let boot = new.map(|()| memory::boot_id());
        if new.is_some() {
            if let Some(file) = file {
                let len = control::FIRST_BYTES;
                memory::commit(file, 0, len).map_err(|e| files::no_room_for_new(file, len, e))?;
            }
            map.u64_at(control::FRONTIER).store(layout.data_at, Ordering::Release);
            map.u64_at(control::CACHE_LIMIT).store(limits::memory_left().0 / 4, Ordering::Release);
            layout.write(&map, memory::random_u64(), boot.unwrap_or(0), memory::user());
        }
        let id = layout.check(&map, boot)?;
        // The identity of this process follows the table of its holds, on its own cache line in the same
        // mapping.
        let blocks = (layout.slabs * layout::SLAB_BLOCKS) as usize;
        let (holds, line) = private_table::table(blocks + 16)?.split_at(blocks);
        let cursors = (0..size_class::CLASSES).map(|_| AtomicU32::new(NO_CURSOR)).collect();
        // The real tag is set once this process is a member. Until then `me` must not be called.
        let inner = Inner {
            map,
            files: Files::new(fd),
            layout,
            id,
            identity: Identity::new(&line[8], u64::MAX),
            holds,
            populated: Mutex::default(),
            cursors,
            budget: Budget::of_this_process(),
        };
        let arena = Self(Box::leak(Box::new(inner)));
        let me = arena.join()?;
        arena.0.identity.set(me.raw() + 1);
        Ok(arena)
    }

    /// Returns this process's member tag.
    ///
    /// # Errors
    /// [`Error::Forked`] in a process that was forked from a member.
    #[inline]
    pub fn me(&self) -> Result<Member> {
        match self.0.identity.get() {
            0 => Err(Error::Forked),
            tag => Ok(Member::from_raw(tag - 1)),
        }
    }

    /// Returns `true` if this process is a member. A forked child of a member is not a member.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.identity.get() != 0
    }

    /// Returns the size of the arena in bytes. Most of it is address space, not memory.
    pub fn size(&self) -> u64 {
        self.0.layout.size
    }

    /// Returns the first word of a held block's memory, and its length in bytes: 0 if the handle holds
    /// nothing.
    pub fn block_words(&self, block: &Hold) -> (Word, u64) {
        let (at, len) = block.memory();
        (Word::at(at), len)
    }

    /// Calls `f` with the member tag of this process and the intent word of this thread's lane.
    ///
    /// `f` must not run user code, and must not call this function.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub fn with_intent<R>(&self, f: impl FnOnce(Member, Word) -> R) -> Result<R> {
        let me = self.me()?;
        Ok(intents::with(|lane| self.note_lane(me, lane), |lane| f(me, self.0.layout.intent(me, lane))))
    }

    /// Returns the random ID of the arena.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the column of owner words of all envelopes.
    #[inline]
    pub fn owner_words(&self) -> Column {
        self.0.layout.envelope_column(field::OWNER)
    }

    /// Returns the column of place words of all envelopes.
    #[inline]
    pub fn place_words(&self) -> Column {
        self.0.layout.envelope_column(field::PLACE)
    }

    pub(crate) fn map(&self) -> &'static Mapping {
        &self.0.map
    }
    pub(crate) fn layout(&self) -> &'static Layout {
        &self.0.layout
    }
    pub(crate) fn holds(&self) -> &'static [AtomicU64] {
        self.0.holds
    }

    pub(crate) fn block_at(&self, id: BlockId) -> BlockAt {
        let state = Word::at(self.0.layout.blocks_at + 64 * u64::from(id));
        BlockAt {
            id,
            state,
            inline: INLINE_SEATS,
            per_page: (size_class::SEAT_PAGE / 8) as u32 - PAGE_HEADER,
        }
    }

    /// Returns a function that finds the memory of a page of seats.
    pub(crate) fn pages(&self) -> impl Fn(BlockId) -> Option<Word> + Clone + use<> {
        let arena = *self;
        move |page| arena.seat_page(page)
    }

    /// Returns the first word of a page of seats, or `None` if the block is not a page of seats. A block that
    /// is a page of seats stays one.
    #[inline]
    pub(crate) fn seat_page(&self, page: BlockId) -> Option<Word> {
        let (class, base) = self.slab(page / layout::SLAB_BLOCKS)?;
        let at = base + u64::from(page % layout::SLAB_BLOCKS) * size_class::SEAT_PAGE;
        (class == size_class::SEAT_PAGES).then_some(Word::at(at))
    }

    #[inline]
    pub(crate) fn seat_word(&self, block: BlockId, seat: SeatAt) -> Option<Word> {
        self.block_at(block).seat_word(seat, self.pages())
    }
}
