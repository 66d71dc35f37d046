//! The shadow of memory: for each few bytes, who wrote them last and who has read them since.
//!
//! A page is as fine as its narrowest access: an array of 16-byte vectors has one cell per vector, and one that is ever
//! touched by bytes gets a cell per byte. So neighbours that two lanes write are never taken for one place.

use std::collections::HashMap;

use bytemuck::Zeroable;

use super::channel::Channel;
use super::clock::Stamp;

/// What is known of one cell.
#[derive(Clone, Copy, Debug, Default, Zeroable)]
#[repr(C)]
pub(super) struct Cell {
    /// The last write.
    pub(super) write: Stamp,
    /// The last read, without its lane.
    pub(super) read: Stamp,
    /// Lanes of that warp that have read it at that tick.
    pub(super) readers: u32,
    /// Instruction of the last write, and how ([`Mark`]).
    pub(super) writer: Mark,
    /// Instruction of the last read.
    pub(super) reader: Mark,
    /// Reads that are concurrent with the last: in shared memory the warps, as bits; in global memory one thread.
    pub(super) others: u32,
    /// The earliest tick of those reads; 0 is none.
    pub(super) others_tick: u32,
    /// Instruction of the latest of them.
    pub(super) others_mark: Mark,
    /// The bytes last written, or a digest of them, where the writer's mark says so.
    pub(super) value: u32,
    /// What strong accesses here have told each other: index, 0 for none.
    pub(super) channel: u32,
}

/// An instruction's number with how it accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
#[repr(transparent)]
pub(super) struct Mark(u32);

impl Mark {
    const SITE: u32 = (1 << 28) - 1;
    const VALUED: u32 = 1 << 30;
    const TWINS: u32 = 1 << 31;

    pub(super) fn new(site: u32, strength: Strength) -> Mark {
        Mark(site & Mark::SITE | (strength as u32) << 28)
    }

    pub(super) fn site(self) -> u32 {
        self.0 & Mark::SITE
    }

    pub(super) fn strength(self) -> Strength {
        match self.0 >> 28 & 3 {
            0 => Strength::Weak,
            1 => Strength::Block,
            _ => Strength::Device,
        }
    }

    /// The cell's value is known.
    pub(super) fn valued(self) -> bool {
        self.0 & Mark::VALUED != 0
    }

    /// Others wrote the same value at the same time: the channel lists them.
    pub(super) fn twins(self) -> bool {
        self.0 & Mark::TWINS != 0
    }

    pub(super) fn with_value(self) -> Mark {
        Mark(self.0 | Mark::VALUED)
    }

    pub(super) fn with_twins(self) -> Mark {
        Mark(self.0 | Mark::TWINS)
    }
}

/// Whom a strong access speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// Nobody.
    Weak,
    /// The threads of its block.
    Block,
    /// All threads.
    Device,
}

impl Strength {
    /// Whether two strong accesses each include the other's thread.
    pub(super) fn meets(self, other: Strength, same_block: bool) -> bool {
        self.min(other) >= if same_block { Strength::Block } else { Strength::Device }
    }
}

/// A page of the shadow.
#[derive(Debug)]
pub(super) struct Page {
    /// A cell is `1 << shift` bytes.
    pub(super) shift: u32,
    cells: Vec<Cell>,
}

impl Page {
    /// The cells of `bytes` bytes at `address`, which is in this page.
    #[inline(always)]
    pub(super) fn cells(&mut self, address: u64, bytes: u32) -> &mut [Cell] {
        let first = (address >> self.shift) as usize & (self.cells.len() - 1);
        let last = (first + ((bytes >> self.shift) as usize).max(1)).min(self.cells.len());
        &mut self.cells[first..last]
    }
}

/// The cells of a memory.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Bytes of a page, as a power of two.
    bits: u32,
    pages: Vec<Page>,
    index: HashMap<u64, u32>,
    /// The pages touched last: tag plus one, and index.
    recent: [(u64, u32); 64],
    /// What strong accesses have told each other; 0 is nobody's.
    channels: Vec<Channel>,
    /// Cells of all pages, and how many there may be.
    cells: usize,
    most: usize,
    /// Pages were forgotten to stay within that.
    pub(super) forgot: bool,
}

/// The coarsest cell: no access is wider without being several.
const COARSEST: u32 = 4;

/// 4 GiB of cells: the history of 340 MB that are accessed by words.
const MOST_CELLS: usize = (4 << 30) / size_of::<Cell>();

impl Shadow {
    /// A shadow with pages of `1 << bits` bytes.
    pub(super) fn new(bits: u32) -> Shadow {
        let channels = vec![Channel::default()];
        Shadow {
            bits,
            pages: Vec::new(),
            index: HashMap::new(),
            recent: [(0, 0); 64],
            channels,
            cells: 0,
            most: MOST_CELLS,
            forgot: false,
        }
    }

    /// Nothing was ever accessed. Pages stay allocated.
    pub(super) fn clear(&mut self) {
        for page in &mut self.pages {
            page.cells.fill(Cell::default());
        }
        self.channels.truncate(1);
    }

    /// The number of the page that an address is in.
    #[inline(always)]
    pub(super) fn tag(&self, address: u64) -> u64 {
        address >> self.bits
    }

    /// The page of an address, fine enough for an access of so many bytes, and all channels.
    #[inline(always)]
    pub(super) fn page(&mut self, address: u64, bytes: u32) -> (&mut Page, &mut Vec<Channel>) {
        let tag = self.tag(address);
        let slot = (tag & 63) as usize;
        let page = if self.recent[slot].0 == tag + 1 {
            self.recent[slot].1
        } else {
            let page = self.find(tag, address, bytes);
            self.recent[slot] = (tag + 1, page);
            page
        };
        let wanted = natural(address, bytes);
        if wanted < self.pages[page as usize].shift {
            self.refine(page as usize, wanted);
        }
        (&mut self.pages[page as usize], &mut self.channels)
    }

    /// The cells of one access, and all channels.
    pub(super) fn cells(&mut self, address: u64, bytes: u32) -> (&mut [Cell], &mut Vec<Channel>) {
        let (page, channels) = self.page(address, bytes);
        (page.cells(address, bytes), channels)
    }

    #[cold]
    fn find(&mut self, tag: u64, address: u64, bytes: u32) -> u32 {
        if self.cells >= self.most && !self.index.contains_key(&tag) {
            self.forget();
        }
        let next = self.pages.len() as u32;
        let page = *self.index.entry(tag).or_insert(next);
        if page == next {
            let shift = natural(address, bytes);
            self.cells += 1 << (self.bits - shift);
            self.pages.push(Page { shift, cells: bytemuck::zeroed_vec(1 << (self.bits - shift)) });
        }
        page
    }

    /// Forgets what was accessed, to make room. That can only hide races; what strong accesses have published stays, for
    /// without it there would seem to be some.
    fn forget(&mut self) {
        let mut kept = HashMap::new();
        let tags: HashMap<u32, u64> = self.index.drain().map(|(tag, page)| (page, tag)).collect();
        let pages = std::mem::take(&mut self.pages).into_iter().enumerate();
        for (at, page) in pages.filter(|(_, page)| page.cells.iter().any(|cell| cell.channel != 0)) {
            if let Some(&tag) = tags.get(&(at as u32)) {
                kept.insert(tag, self.pages.len() as u32);
                self.pages.push(page);
            }
        }
        self.cells = self.pages.iter().map(|page| page.cells.len()).sum();
        // Where all of it is published there is no room to make: then the limit moves.
        self.most = self.most.max(self.cells * 2);
        (self.index, self.recent, self.forgot) = (kept, [(0, 0); 64], true);
    }

    /// Makes the cells of a page smaller: each becomes several with the same history.
    #[cold]
    fn refine(&mut self, page: usize, shift: u32) {
        let page = &mut self.pages[page];
        let times = 1 << (page.shift - shift);
        let mut cells = Vec::with_capacity(page.cells.len() * times);
        for &cell in &page.cells {
            for _ in 0..times {
                let mut part = cell;
                // The value was that of the whole.
                part.writer = Mark::new(cell.writer.site(), cell.writer.strength());
                if cell.channel != 0 {
                    self.channels.push(self.channels[cell.channel as usize].clone());
                    part.channel = self.channels.len() as u32 - 1;
                }
                cells.push(part);
            }
        }
        self.cells += cells.len() - page.cells.len();
        (page.cells, page.shift) = (cells, shift);
    }

    /// The channel of a cell: this new one where it has none.
    pub(super) fn channel(channels: &mut Vec<Channel>, cell: &mut Cell, new: Channel) -> usize {
        if cell.channel == 0 {
            channels.push(new);
            cell.channel = channels.len() as u32 - 1;
        }
        cell.channel as usize
    }
}

/// The widest cell that fits an access.
#[inline(always)]
fn natural(address: u64, bytes: u32) -> u32 {
    (address | u64::from(bytes)).trailing_zeros().min(COARSEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_as_fine_as_its_narrowest_access() {
        let mut shadow = Shadow::new(12);
        let (cells, _) = shadow.cells(0x1000, 16);
        assert_eq!(cells.len(), 1);
        cells[0].write = Stamp::new(5, 0, 0, 3);
        let (cells, _) = shadow.cells(0x1002, 2);
        assert_eq!(cells.len(), 1);
        assert_eq!(cells[0].write, Stamp::new(5, 0, 0, 3));
        cells[0].write = Stamp::new(6, 0, 0, 4);
        let (cells, _) = shadow.cells(0x1000, 16);
        let lanes: Vec<u32> = cells.iter().map(|cell| cell.write.lane()).collect();
        assert_eq!(lanes, [3, 4, 3, 3, 3, 3, 3, 3]);
        assert_eq!(shadow.cells(0x1010, 4).0[0].write, Stamp::NEVER);
        assert_eq!(shadow.page(0x9000, 4).0.shift, 2);
    }

    #[test]
    fn it_forgets_when_it_is_full_but_not_what_was_published() {
        let mut shadow = Shadow::new(12);
        shadow.most = 4 * 1024;
        let (cells, channels) = shadow.cells(0, 4);
        cells[0].write = Stamp::new(1, 0, 0, 0);
        Shadow::channel(channels, &mut cells[0], Channel::default());
        for page in 1..8u64 {
            shadow.cells(page << 12, 4).0[0].write = Stamp::new(2, 0, 0, 0);
        }
        assert!(shadow.forgot && shadow.cells <= shadow.most);
        assert_eq!(shadow.cells(0, 4).0[0].write, Stamp::new(1, 0, 0, 0));
        assert_eq!(shadow.cells(1 << 12, 4).0[0].write, Stamp::NEVER);
        assert_eq!(shadow.cells(7 << 12, 4).0[0].write, Stamp::new(2, 0, 0, 0));
    }

    #[test]
    fn a_mark_keeps_site_strength_and_flags() {
        let mark = Mark::new(77, Strength::Device).with_value().with_twins();
        assert_eq!((mark.site(), mark.strength()), (77, Strength::Device));
        assert!(mark.valued() && mark.twins());
        assert!(Strength::Block.meets(Strength::Device, true));
        assert!(!Strength::Block.meets(Strength::Device, false));
        assert!(!Strength::Weak.meets(Strength::Device, true));
    }
}
