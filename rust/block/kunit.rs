// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of block devices, on a disk of our own.

use crate::base::{
    memory::NumaNode,
    scatterlist::{
        PageChunks,
        Segment,
        Segmented, //
    },
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
};
use crate::bindings;
use crate::block::{
    bdev::{
        Bdev,
        BdevEvents,
        BdevLimits, //
    },
    bio::{
        plugged,
        Bio,
        BioOp,
        BioOwner,
        BioRequest, //
    },
    mq::{
        Borrowed,
        Command,
        DiskNames,
        GenDisk,
        GenDiskBuilder,
        IdleRequest,
        Limits,
        Operations,
        Owned,
        PrChange,
        PrReport,
        Refused,
        Request,
        TagSet,
        TagSetBuilder,
        Timeout,
        PR_KEYS_MAX, //
    },
    BlkError,
    BlkResult,
    SECTOR_SHIFT, //
};
use crate::kunit::{
    check,
    shell,
    skip, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    }, //
};

mod bdev;
mod bio;
mod mq;
mod pr;

/// How long anything is waited for.
const TIMEOUT_MS: u32 = 20_000;
/// The size of a piece of memory, in bytes: a page, or a part of a larger one.
const PIECE: usize = 4096;
/// The size of the disk, in bytes.
const SIZE: usize = 4 << 20;
/// What is read where something was discarded.
const DISCARDED: u8 = 0xdd;
/// The size of a report of the persistent reservation, in bytes.
const REPORT_SIZE: usize = 512;
/// What every request carries.
const MARK: u32 = 0x5eed;

/// A request that came.
#[derive(Clone, Copy)]
struct Seen {
    command: Command,
    sector: u64,
    bytes: u32,
    fua: bool,
    atomic: bool,
    no_unmap: bool,
    last: bool,
    queue: u32,
    tag: u16,
    generation: u32,
    mark: u32,
    pr_change: (PrChange, u32),
}

/// What a [`Ram`] has.
struct State {
    memory: KVVec<u8>,
    seen: KVec<Seen>,
    /// What requests end with.
    result: BlkResult,
    /// Requests stay.
    hold: bool,
    held: KVec<Owned<Request<Ram>>>,
    /// The number of the device that requests are for.
    dev: u32,
    /// How often a request was late, and how often all may be before they end.
    late: u32,
    patience: u32,
    /// How often the disk was closed by its last user.
    closes: u32,
}

impl State {
    /// Does what the request wants.
    fn run(&mut self, request: &Request<Ram>) -> BlkResult {
        self.result?;
        let (command, bytes) = (request.command(), request.bytes() as usize);
        if matches!(command, Command::Flush | Command::Reserve) {
            return Ok(());
        }
        // A report has no place: it is at the beginning.
        let start = match command {
            Command::Report => 0,
            _ => (request.sector() << SECTOR_SHIFT) as usize,
        };
        let memory = self.memory.get_mut(start..start + bytes);
        let mut memory = memory.ok_or(BlkError::IoError)?;
        match command {
            Command::Discard | Command::SecureErase => memory.fill(DISCARDED),
            Command::WriteZeroes => memory.fill(0),
            _ => {
                for segment in request.segments() {
                    let (part, rest) = memory.split_at_mut(segment.len() as usize);
                    // SAFETY: The pages are the request's, in the direct map, and nobody writes
                    // them but for what a read is for.
                    unsafe {
                        let page = bindings::farblk_page_address(segment.page().as_ptr());
                        let page = page.cast::<u8>().add(segment.offset() as usize);
                        match command {
                            Command::Read | Command::Report => {
                                page.copy_from(part.as_ptr(), part.len())
                            }
                            _ => part.as_mut_ptr().copy_from(page, part.len()),
                        }
                    }
                    memory = rest;
                }
            }
        }
        Ok(())
    }
}

/// The memory of a disk, and what happens to it.
#[pin_data]
struct Ram {
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// A request came that stays, or was late.
    #[pin]
    event: Completion,
}

/// What a request carries.
#[pin_data]
struct Mark {
    value: u32,
}

#[vtable]
impl Operations for Ram {
    type QueueData = Arc<Ram>;
    type HwData = KBox<u32>;
    type RequestData = Mark;

    const PR_REPORT_SIZE: usize = REPORT_SIZE;

    /// Each number is a byte: generation, count, the key of the reservation and its type, and the
    /// keys. There is no generation of 255.
    fn parse_pr_report(bytes: &[u8]) -> Option<PrReport> {
        let (&[generation, count, holder, kind], keys) = bytes.split_first_chunk()?;
        let (keys, _) = keys.split_first_chunk::<PR_KEYS_MAX>()?;
        (generation != 255).then_some(PrReport {
            generation: generation.into(),
            reservation: (holder != 0).then_some((holder.into(), kind.into())),
            keys: keys.map(u64::from),
            count: count.into(),
        })
    }

    fn new_request_data() -> impl PinInit<Mark, Error> {
        try_pin_init!(Mark { value: MARK })
    }

    fn init_hctx(_: ArcBorrow<'_, Ram>, index: u32) -> Result<KBox<u32>> {
        Ok(KBox::new(index, kernel::alloc::flags::GFP_NOWAIT)?)
    }

    fn queue_rq(
        hw: Borrowed<'_, KBox<u32>>,
        ram: ArcBorrow<'_, Ram>,
        rq: Owned<IdleRequest<Self>>,
        last: bool,
    ) -> Result<(), Refused<Self>> {
        let rq = rq.start();
        let mut state = ram.state.lock();
        state.dev = rq.dev();
        let _ = state.seen.push_within_capacity(Seen {
            command: rq.command(),
            sector: rq.sector(),
            bytes: rq.bytes(),
            fua: rq.fua(),
            atomic: rq.atomic(),
            no_unmap: rq.no_unmap(),
            last,
            queue: *hw,
            tag: rq.tag(),
            generation: rq.generation(),
            mark: rq.data().value,
            pr_change: rq.pr_change(),
        });
        if state.hold || rq.polled() {
            let _ = state.held.push_within_capacity(rq);
            ram.event.complete();
        } else {
            let result = state.run(&rq);
            drop(state);
            rq.complete(result);
        }
        Ok(())
    }

    fn commit_rqs(_: Borrowed<'_, KBox<u32>>, _: ArcBorrow<'_, Ram>) {}

    fn timeout(_: Borrowed<'_, KBox<u32>>, ram: ArcBorrow<'_, Ram>, _tag: u16) -> Timeout {
        let patient = {
            let mut state = ram.state.lock();
            state.late += 1;
            state.late <= state.patience
        };
        ram.event.complete();
        if patient {
            return Timeout::Reset;
        }
        ram.release(Err(BlkError::Timeout));
        Timeout::Done
    }

    fn poll(hw: Borrowed<'_, KBox<u32>>, ram: ArcBorrow<'_, Ram>) -> u32 {
        // The only polled queue is behind the only other one.
        if *hw == 1 {
            ram.release(Ok(()))
        } else {
            0
        }
    }

    fn last_close(ram: ArcBorrow<'_, Ram>) {
        ram.state.lock().closes += 1;
    }
}

impl Ram {
    /// Ends what stayed; returns how many these were.
    fn release(&self, result: BlkResult) -> u32 {
        let mut count = 0;
        loop {
            let mut state = self.state.lock();
            let Some(rq) = state.held.pop() else {
                return count;
            };
            let result = result.and_then(|()| state.run(&rq));
            drop(state);
            rq.complete(result);
            count += 1;
        }
    }
}

/// A disk.
struct Disk {
    disk: GenDisk<Ram>,
    ram: Arc<Ram>,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.ram.state.lock().hold = false;
        self.ram.release(Ok(()));
    }
}

/// What a disk is like in tests that want nothing special.
fn plain() -> Limits {
    Limits {
        max_hw_sectors: 2048,
        max_segment_size: 1 << 20,
        max_segments: 256,
        max_discard_sectors: 1024,
        max_write_zeroes_sectors: 1024,
        write_cache: true,
        fua: true,
        ..Limits::default()
    }
}

/// The names of disks that are there at the same time.
fn names() -> Result<Arc<DiskNames>> {
    Arc::pin_init(DiskNames::new(c"farblk_kunit"), GFP_KERNEL)
}

impl Disk {
    /// A disk with one hardware queue that is not polled.
    fn with(limits: Limits, poll_queues: u32, depth: u32, timeout_ms: u32) -> Result<Self> {
        let tag_set = TagSetBuilder::new(1, depth)
            .poll_queues(poll_queues)
            .timeout_ms(timeout_ms)
            .no_sched_by_default()
            .build();
        Self::of(limits, names()?, Arc::pin_init(tag_set, GFP_KERNEL)?)
    }

    /// A disk of a tag set.
    fn of(limits: Limits, names: Arc<DiskNames>, tag_set: Arc<TagSet<Ram>>) -> Result<Self> {
        let mut memory = KVVec::with_capacity(SIZE, GFP_KERNEL)?;
        memory.resize(SIZE, 0, GFP_KERNEL)?;
        let state = State {
            memory,
            seen: KVec::with_capacity(64, GFP_KERNEL)?,
            result: Ok(()),
            hold: false,
            held: KVec::with_capacity(64, GFP_KERNEL)?,
            dev: 0,
            late: 0,
            patience: 1,
            closes: 0,
        };
        let ram = Arc::pin_init(
            pin_init!(Ram {
                state <- new_irqsave_spinlock!(state),
                event <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let disk = GenDiskBuilder::new()
            .limits(limits)
            .capacity_sectors((SIZE >> SECTOR_SHIFT) as u64)
            .defer_partition_scan()
            .build_numbered(names, tag_set, ram.clone())?;
        check!(ram.state.lock().seen.is_empty());
        disk.scan_partitions()?;
        check!(!ram.state.lock().seen.is_empty());
        ram.state.lock().seen.clear();
        Ok(Self { disk, ram })
    }

    fn new() -> Result<Self> {
        Self::with(plain(), 0, 32, 0)
    }

    /// Opens it.
    fn open(&self, write: bool) -> Result<Bdev> {
        Bdev::open_dev(self.dev(), write, Arc::new(NoEvents, GFP_KERNEL)?)
    }

    fn dev(&self) -> u32 {
        // Its partition table was read.
        self.ram.state.lock().dev
    }

    /// What came since this was last asked for.
    fn seen(&self) -> Result<KVec<Seen>> {
        let mut seen = KVec::with_capacity(64, GFP_KERNEL)?;
        core::mem::swap(&mut self.ram.state.lock().seen, &mut seen);
        Ok(seen)
    }

    fn hold(&self, hold: bool) {
        self.ram.state.lock().hold = hold;
    }

    /// Sets what requests end with.
    fn result(&self, result: BlkResult) {
        self.ram.state.lock().result = result;
    }

    /// Waits for a request that stays, or is late.
    fn event(&self) -> Result {
        self.ram.event.wait_timeout(TIMEOUT_MS)
    }
}

/// Sleeps a little, for what should not happen.
fn a_while() {
    kernel::time::delay::fsleep(kernel::time::Delta::from_millis(50));
}

/// Hears nothing.
struct NoEvents;

impl BdevEvents for NoEvents {
    fn mark_dead(&self, _surprise: bool) {}
}

/// Pages in an order of their own.
struct Pages {
    _memory: Arc<PageChunks>,
    segments: KVec<Segment>,
    writable: bool,
}

// SAFETY: The segments are of the memory that is kept, which only devices and the methods of this
// type access; those that do need a borrow while no bio has it.
unsafe impl Segmented for Pages {
    fn writable(&self) -> bool {
        self.writable
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.segments.iter().copied()
    }
}

// SAFETY: Pages belong to no thread.
unsafe impl Send for Pages {}

impl Pages {
    /// Pieces of which none is followed by its physical neighbour.
    fn new(count: usize) -> Result<Self> {
        let memory = PageChunks::alloc(
            (count * PIECE).next_multiple_of(PAGE_SIZE),
            NumaNode::NO_NODE,
        )?;
        let mut segments = KVec::with_capacity(count, GFP_KERNEL)?;
        for index in (0..count).rev() {
            for segment in memory.segments(index * PIECE, PIECE) {
                segments.push(segment, GFP_KERNEL)?;
            }
        }
        Ok(Self {
            _memory: memory,
            segments,
            writable: true,
        })
    }

    /// Visits all bytes with what they would be for `seed`.
    fn visit(&mut self, seed: u8, mut f: impl FnMut(&mut u8, u8)) {
        let mut index = 0;
        for segment in &self.segments {
            // SAFETY: The page is ours, in the direct map, and no bio has it.
            let bytes = unsafe {
                let page = bindings::farblk_page_address(segment.page().as_ptr()).cast::<u8>();
                core::slice::from_raw_parts_mut(
                    page.add(segment.offset() as usize),
                    segment.len() as usize,
                )
            };
            for byte in bytes {
                f(byte, pattern(seed, index));
                index += 1;
            }
        }
    }

    fn fill(&mut self, seed: u8) {
        self.visit(seed, |byte, pattern| *byte = pattern);
    }

    /// Returns true if the first `len` bytes are those of `seed`.
    fn matches(&mut self, seed: u8, len: usize) -> bool {
        let (mut same, mut index) = (true, 0);
        self.visit(seed, |byte, pattern| {
            same &= index >= len || *byte == pattern;
            index += 1;
        });
        same
    }

    fn all(&mut self, value: u8) -> bool {
        let mut same = true;
        self.visit(0, |byte, _| same &= *byte == value);
        same
    }
}

/// The byte at a place; no page of the disk is like another.
fn pattern(seed: u8, index: usize) -> u8 {
    match index & 1 {
        0 => (index >> 12) as u8 ^ seed,
        _ => (index >> 20) as u8 ^ (index >> 1) as u8 ^ seed,
    }
}

/// What an I/O gave back.
struct Back {
    bio: Bio<Io>,
    pages: Option<Pages>,
    result: BlkResult,
}

/// How I/Os ended.
#[pin_data]
struct Log {
    #[pin]
    backs: IrqSaveSpinLock<KVec<Back>>,
    #[pin]
    done: Completion,
}

impl Log {
    fn new() -> Result<Arc<Self>> {
        let backs = KVec::with_capacity(64, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                backs <- new_irqsave_spinlock!(backs),
                done <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Waits for an I/O to end.
    fn wait(&self) -> Result<Back> {
        self.done.wait_timeout(TIMEOUT_MS)?;
        let back = self.backs.lock().pop();
        back.ok_or(ENOENT)
    }
}

/// The owner of an I/O.
struct Io {
    pages: Option<Pages>,
    log: Arc<Log>,
}

impl BioOwner for Io {
    type Memory = Pages;

    fn memory(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }

    fn end_io(self, bio: Bio<Self>, result: BlkResult) {
        let back = Back {
            bio,
            pages: self.pages,
            result,
        };
        let _ = self.log.backs.lock().push_within_capacity(back);
        self.log.done.complete();
    }
}

/// Does an I/O, and waits for its end.
fn io(bdev: &Bdev, bio: Bio<Io>, request: BioRequest, pages: Option<Pages>) -> Result<Back> {
    let log = Log::new()?;
    let owner = Io {
        pages,
        log: log.clone(),
    };
    bio.submit(bdev, request, owner);
    let back = log.wait()?;
    // It came back once.
    check!(log.backs.lock().is_empty());
    Ok(back)
}
