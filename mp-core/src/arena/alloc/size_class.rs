//! Size classes: which sizes blocks have, and how many make a slab.
//!
//! A class also says in which kind of memory its slabs are: each size has one class in the arena's own file
//! and one in files with names. So blocks of both kinds never mix, and a search for one kind never meets the
//! other.

/// Blocks up to this size get their pages slab by slab, larger ones block by block.
pub(crate) const SLAB_COMMIT: u64 = 16 << 10;
/// From this size on, pages are mapped in bulk instead of by a fault a page.
pub(crate) const POPULATE: u64 = 64 << 10;

const SMALL: u64 = 1 << 10;
const MEDIUM: u64 = 1 << 20;
const SMALL_CLASSES: u32 = (SMALL / 64) as u32;
const MEDIUM_CLASSES: u32 = 4 * 10;
const LARGE_DOUBLINGS: u32 = 22;

/// The class of pages of seats: used for nothing else, so that a page, once made, stays one for ever. A
/// process that follows a link that has changed meanwhile reads seats, never a tensor's data.
pub(crate) const SEAT_PAGES: u32 = SIZES;
/// Bytes of a page of seats.
pub(crate) const SEAT_PAGE: u64 = 2048;

/// How many sizes there are.
///
/// Multiples of 64 bytes up to 1 KiB, then four steps a doubling up to 1 MiB, then eight up to 4 TiB: at most a
/// fifth, later a ninth of a block is unused.
const SIZES: u32 = SMALL_CLASSES + MEDIUM_CLASSES + 8 * LARGE_DOUBLINGS;
/// The first class of blocks in files with names.
const IN_FILES: u32 = SIZES + 1;
/// How many classes there are: the sizes, pages of seats, and the sizes again, in files.
pub(crate) const CLASSES: u32 = IN_FILES + SIZES;

/// The class of blocks of the same size in files with names.
pub(crate) const fn twin_in_files(class: u32) -> u32 {
    class + IN_FILES
}

/// Whether blocks of this class are in files with names.
pub(crate) const fn is_in_files(class: u32) -> bool {
    class >= IN_FILES
}

/// The class of blocks of the same size in the arena's own file.
pub(crate) const fn twin_in_arena(class: u32) -> u32 {
    class % IN_FILES
}

/// The smallest class whose blocks hold `len` bytes; `None` if there is none.
pub(crate) fn class_of(len: u64) -> Option<u32> {
    let len = len.max(1);
    if len <= SMALL {
        return Some(len.div_ceil(64) as u32 - 1);
    }
    let (first, base, steps) =
        if len <= MEDIUM { (SMALL_CLASSES, SMALL, 4) } else { (SMALL_CLASSES + MEDIUM_CLASSES, MEDIUM, 8) };
    // len is in (base << d, base << (d + 1)], which is cut into `steps` equal steps.
    let d = (len - 1).ilog2() - base.ilog2();
    let step = (base << d) / steps;
    let within = (len - (base << d)).div_ceil(step);
    let class = first + d * steps as u32 + within as u32 - 1;
    (class < SEAT_PAGES).then_some(class)
}

/// Properties of a class: looked up for each allocation, since computing them takes divisions.
struct Class {
    size: u64,
    blocks: u32,
}

/// All classes that a slab's word can name; those from [`CLASSES`] on are not used.
// fork: it never changes.
static TABLE: [Class; 1024] = {
    let mut all = [const { Class { size: 0, blocks: 0 } }; 1024];
    let mut class = 0;
    while class < 1024 {
        let size = compute_size(class);
        let blocks = (16 << 20) / size;
        let most = crate::arena::layout::SLAB_BLOCKS;
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

/// Bytes of a block of this class.
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

/// The classes whose blocks can serve for one of this class: the same kind of memory, and up to a quarter
/// larger, which is better than taking more memory. Pages of seats serve only as such.
pub(crate) fn near(class: u32) -> impl Iterator<Item = u32> {
    let end = match class {
        SEAT_PAGES => class + 1,
        _ if is_in_files(class) => CLASSES,
        _ => SEAT_PAGES,
    };
    let most = size_of(class) / 4 * 5;
    (class..end).take_while(move |&c| size_of(c) <= most)
}

/// Whether blocks of `other` can serve for one of this class: those of [`near`].
#[inline]
pub(crate) fn is_near(class: u32, other: u32) -> bool {
    other == class || (other > class && near(class).any(|c| c == other))
}

/// How many blocks of this class make a slab: 64, or fewer so that a slab stays at 16 MiB, but one at least.
#[inline]
pub(crate) fn blocks_of(class: u32) -> u32 {
    TABLE[(class % 1024) as usize].blocks
}

/// Where slabs of this class may start: pages; huge pages for blocks that can use them.
pub(crate) fn alignment_of(class: u32) -> u64 {
    if size_of(class) >= 2 << 20 { 2 << 20 } else { 4096 }
}

/// How much address space a slab of this class takes.
pub(crate) fn span_of(class: u32) -> u64 {
    (size_of(class) * u64::from(blocks_of(class))).next_multiple_of(4096)
}

/// Whether each block of this class has pages of its own.
pub(crate) fn commits_alone(class: u32) -> bool {
    size_of(class) >= SLAB_COMMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
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
    fn a_block_is_taken_for_another_only_if_it_is_as_large_and_in_the_same_memory() {
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
