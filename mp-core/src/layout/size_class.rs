//! Size classes: sizes of blocks, and numbers of blocks in a slab.
//!
//! A class also determines the kind of memory of its slabs. Each size has one class in the arena's own file
//! and one in named files. So no slab contains blocks of both kinds, and a search for one kind never reads
//! slabs of the other kind.

/// Minimum size in bytes of blocks whose pages are reserved for each block alone. For smaller blocks, the
/// pages of a whole slab are reserved at once.
pub(crate) const SLAB_COMMIT: u64 = 16 << 10;
/// Minimum size for mapping pages in bulk instead of by page faults.
pub(crate) const POPULATE: u64 = 64 << 10;

const SMALL: u64 = 1 << 10;
const MEDIUM: u64 = 1 << 20;
const SMALL_CLASSES: u32 = (SMALL / 64) as u32;
const MEDIUM_CLASSES: u32 = 4 * 10;
const LARGE_DOUBLINGS: u32 = 22;

/// Class of pages of seats. The class has no other use, so a page of seats is never used for other data. So a
/// process that follows an outdated link to such a page still reads seats, never a tensor's data.
pub(crate) const SEAT_PAGES: u32 = SIZES;
/// Size of a page of seats in bytes.
pub(crate) const SEAT_PAGE: u64 = 2048;

/// Number of block sizes.
///
/// The sizes are multiples of 64 bytes up to 1 KiB, then four steps per doubling up to 1 MiB, then eight up
/// to 4 TiB. At most a fifth of a block is unused, and of large blocks a ninth.
const SIZES: u32 = SMALL_CLASSES + MEDIUM_CLASSES + 8 * LARGE_DOUBLINGS;
/// First class of blocks in named files.
const IN_FILES: u32 = SIZES + 1;
/// Number of classes: one for each size, one for pages of seats, and one for each size in named files.
pub(crate) const CLASSES: u32 = IN_FILES + SIZES;

/// Returns the class of blocks of the same size in named files.
pub(crate) const fn twin_in_files(class: u32) -> u32 {
    class + IN_FILES
}

/// Returns `true` if blocks of this class are in named files.
pub(crate) const fn is_in_files(class: u32) -> bool {
    class >= IN_FILES
}

/// Returns the class of blocks of the same size in the arena's own file.
pub(crate) const fn twin_in_arena(class: u32) -> u32 {
    class % IN_FILES
}

/// Returns the smallest class whose blocks hold `len` bytes, or `None` if `len` is too large.
pub(crate) fn class_of(len: u64) -> Option<u32> {
    let len = len.max(1);
    if len <= SMALL {
        return Some(len.div_ceil(64) as u32 - 1);
    }
    let (first, base, steps) =
        if len <= MEDIUM { (SMALL_CLASSES, SMALL, 4) } else { (SMALL_CLASSES + MEDIUM_CLASSES, MEDIUM, 8) };
    // `len` is in (base << d, base << (d + 1)], which is divided into `steps` equal steps.
    let d = (len - 1).ilog2() - base.ilog2();
    let step = (base << d) / steps;
    let within = (len - (base << d)).div_ceil(step);
    let class = first + d * steps as u32 + within as u32 - 1;
    (class < SEAT_PAGES).then_some(class)
}

/// Properties of a class. Allocations read them from a table, because computing them takes divisions.
struct Class {
    size: u64,
    blocks: u32,
}

/// Properties of all classes that a slab's word can contain. Entries from [`CLASSES`] on are unused.
// fork: it never changes.
static TABLE: [Class; 1024] = {
    let mut all = [const { Class { size: 0, blocks: 0 } }; 1024];
    let mut class = 0;
    while class < 1024 {
        let size = compute_size(class);
        let blocks = (16 << 20) / size;
        let most = crate::layout::SLAB_BLOCKS;
        let blocks = if blocks == 0 {
            1
        } else if blocks > most as u64 {
            most
        } else {
            blocks as u32
        };
        all[class as usize] = Class { size, blocks };
        class += 1;
    }
    all
};

/// Returns the size of a block of this class in bytes.
#[inline]
pub(crate) fn size_of(class: u32) -> u64 {
    TABLE[(class % 1024) as usize].size
}

const fn compute_size(class: u32) -> u64 {
    let class = twin_in_arena(class);
    if class == SEAT_PAGES {
        return SEAT_PAGE;
    }
    if class < SMALL_CLASSES {
        return 64 * (class as u64 + 1);
    }
    let (i, base, steps) = if class < SMALL_CLASSES + MEDIUM_CLASSES {
        (class - SMALL_CLASSES, SMALL, 4)
    } else {
        (class - SMALL_CLASSES - MEDIUM_CLASSES, MEDIUM, 8)
    };
    let base = base << (i / steps);
    base + base / steps as u64 * (i % steps + 1) as u64
}

/// Returns the classes whose blocks can be used for this class: of the same kind of memory, and at most a
/// quarter larger. A free larger block is used before new memory. Pages of seats are used for no other class.
pub(crate) fn near(class: u32) -> impl Iterator<Item = u32> {
    let end = match class {
        SEAT_PAGES => class + 1,
        _ if is_in_files(class) => CLASSES,
        _ => SEAT_PAGES,
    };
    let most = size_of(class) / 4 * 5;
    (class..end).take_while(move |&c| size_of(c) <= most)
}

/// Returns `true` if blocks of `other` can be used for this class: see [`near`].
#[inline]
pub(crate) fn is_near(class: u32, other: u32) -> bool {
    other == class || (other > class && near(class).any(|c| c == other))
}

/// Returns the number of blocks in a slab of this class: at most 64 and at most 16 MiB in total, but at least
/// one.
#[inline]
pub(crate) fn blocks_of(class: u32) -> u32 {
    TABLE[(class % 1024) as usize].blocks
}

/// Returns the alignment of slabs of this class: a page, or a huge page for blocks that can use huge pages.
pub(crate) fn alignment_of(class: u32) -> u64 {
    if size_of(class) >= 2 << 20 { 2 << 20 } else { 4096 }
}

/// Returns the address space that a slab of this class takes, in bytes.
pub(crate) fn span_of(class: u32) -> u64 {
    (size_of(class) * u64::from(blocks_of(class))).next_multiple_of(4096)
}

/// Returns `true` if each block of this class has separate pages.
pub(crate) fn commits_alone(class: u32) -> bool {
    size_of(class) >= SLAB_COMMIT
}

/// Returns the base of a slab of the class that is added at the frontier.
pub(crate) fn base_at(class: u32, frontier: u64) -> u64 {
    frontier.next_multiple_of(alignment_of(class))
}

/// Returns `true` if a slab of the class fits between the frontier and the end.
pub(crate) fn fits(class: u32, frontier: u64, end: u64) -> bool {
    base_at(class, frontier).checked_add(span_of(class)).is_some_and(|to| to <= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_size_has_the_smallest_sufficient_class() {
        for class in 0..SEAT_PAGES {
            let size = size_of(class);
            assert_eq!(class_of(size), Some(class), "size {size}");
            if class + 1 < SEAT_PAGES {
                assert_eq!(class_of(size + 1), Some(class + 1), "size {size} + 1");
            }
            assert!(size.is_multiple_of(64));
            assert!(size < 4096 || size.is_multiple_of(256), "size {size} is not aligned");
            assert!(!commits_alone(class) || size.is_multiple_of(4096), "size {size} shares pages");
            let twin = twin_in_files(class);
            assert!(is_in_files(twin) && !is_in_files(class) && twin < CLASSES);
            assert_eq!((size_of(twin), twin_in_arena(twin)), (size, class));
        }
        assert_eq!(class_of(0), Some(0));
        assert_eq!(class_of(u64::MAX), None);
        assert_eq!(size_of(class_of(64 << 20).unwrap()), 64 << 20);
    }
    #[test]
    fn near_size_classes_are_up_to_a_quarter_larger() {
        assert_eq!(near(SEAT_PAGES).collect::<Vec<_>>(), [SEAT_PAGES]);
        for class in (0..CLASSES).filter(|&c| c != SEAT_PAGES) {
            assert!((0..CLASSES).all(|c| is_near(class, c) == near(class).any(|n| n == c)), "{class}");
            let mut others = near(class);
            assert_eq!(others.next(), Some(class));
            for other in others {
                assert!(
                    other != SEAT_PAGES && is_in_files(other) == is_in_files(class),
                    "{other} for {class}"
                );
                assert!(
                    (size_of(class)..=size_of(class) / 4 * 5).contains(&size_of(other)),
                    "{other} for {class}"
                );
            }
        }
    }
}
