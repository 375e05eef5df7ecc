// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

pub(crate) mod event;
mod port;

use super::{
    client::Owner,
    limit,
    quirks::Quirks,
    remnant::Remnants, //
};
use crate::base::{
    memory::NumaNode,
    sync::{
        without_io,
        Completion, //
    },
    workqueue::ReleaseHandle, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    fmt,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// The limits of a device.
///
/// See [`Device`] for an example.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Work requests per queue of a queue pair.
    pub(crate) max_qp_wr: u32,
    /// Segments per send or RDMA WRITE.
    pub(crate) max_send_sge: u32,
    /// Segments per RDMA READ.
    pub(crate) max_sge_rd: u32,
    /// Segments per receive.
    pub(crate) max_recv_sge: u32,
    /// Receives per shared receive queue; see [`Device::has_srq`].
    pub(crate) max_srq_wr: u32,
    /// Segments per receive of a shared receive queue.
    pub(crate) max_srq_sge: u32,
    /// Entries per completion queue.
    pub(crate) max_cqe: u32,
    /// Pages per memory region that is registered by a work request.
    pub(crate) max_fast_reg_page_list_len: u32,
    /// RDMA READs of the peer that the device serves at once, per queue pair.
    pub(crate) max_qp_rd_atom: u32,
    /// RDMA READs that the device has under way at once, per queue pair.
    pub(crate) max_qp_init_rd_atom: u32,
    /// Completion vectors.
    pub(crate) num_comp_vectors: u32,
    /// Bytes per DMA segment, none of which is larger than what can be mapped.
    pub(crate) dma_max_seg_size: u32,
    /// Bytes that can be mapped in one piece.
    pub(crate) dma_max_mapping_size: usize,
    /// True if memory can be registered by work requests (`IB_DEVICE_MEM_MGT_EXTENSIONS`).
    pub(crate) mem_mgt_extensions: bool,
}

/// The page size that all devices have, in bytes.
const SMALL_PAGE: usize = 4096;
/// The pages of a memory region that is registered for a whole piece of memory, at most.
const REGION_PAGES_MAX: u32 = 256;
/// The shift of the largest region where the device is software, which has regions to spare.
const SOFTWARE_REGION_SHIFT: u32 = 26;

/// The name of a device at the time of [`Device::name`]: an administrator may change it.
///
/// See [`Device`] for an example.
pub(crate) struct Name {
    bytes: [u8; Name::MAX],
    len: usize,
}

impl Name {
    const MAX: usize = bindings::IB_DEVICE_NAME_MAX as usize;

    /// Returns the name as text.
    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("?")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which accesses to memory do not come in between those of an atomic operation that a device does
/// for a peer.
///
/// # Examples
///
/// ```
/// # use crate::{base::errno::EOPNOTSUPP, rdma::device::{Atomicity, Device}};
/// # use kernel::prelude::*;
/// /// Returns true if the CPU may count in memory in which peers do by this device.
/// fn cpu_may_count(device: &Device) -> Result<bool> {
///     Ok(device.atomics().ok_or(EOPNOTSUPP)? == Atomicity::Host)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomicity {
    /// The atomic operations of the same device (`IB_ATOMIC_HCA`): neither those of other devices
    /// nor those of the CPU.
    Device,
    /// All others that are atomic, of other devices and of the CPU (`IB_ATOMIC_GLOB`).
    Host,
}

impl Atomicity {
    /// Returns what the C value means; `None` if there are no such operations.
    fn of(cap: bindings::ib_atomic_cap) -> Option<Self> {
        match cap {
            bindings::ib_atomic_cap_IB_ATOMIC_HCA => Some(Self::Device),
            bindings::ib_atomic_cap_IB_ATOMIC_GLOB => Some(Self::Host),
            _ => None,
        }
    }
}

/// Receives an event when a device is being removed, to drop its references to it.
///
/// # Examples
///
/// ```
/// # use crate::{base::sync::Completion, rdma::device::{Device, DeviceUser}};
/// # use kernel::{prelude::*, sync::Arc};
/// #[pin_data]
/// struct Session {
///     #[pin]
///     over: Completion,
/// }
///
/// impl DeviceUser for Session {
///     /// Wakes the task that owns the session: it drops what it has on the device.
///     fn device_removed(&self) {
///         self.over.complete_all();
///     }
/// }
///
/// fn serve(device: &Device, session: Arc<Session>) -> Result {
///     device.add_user(session.clone())?;
///     session.over.wait();
///     device.remove_user(&session);
///     Ok(())
/// }
/// ```
pub(crate) trait DeviceUser: Send + Sync {
    /// The device is being removed.
    ///
    /// # Context
    ///
    /// May sleep. No lock is held.
    fn device_removed(&self);
}

/// The users of a device that receive an event when it is being removed.
struct Users {
    list: KVec<Arc<dyn DeviceUser>>,
    /// The device is being removed: there must be no new users.
    removed: bool,
}

/// An RDMA device.
///
/// Everything that is created on a device holds a reference. The device goes away only after the
/// last of them: see [`Client::remove`](super::client::Client::remove).
///
/// # Examples
///
/// ```
/// # use crate::{base::errno::EOPNOTSUPP, rdma::device::Device};
/// # use kernel::prelude::*;
/// # fn example(device: &Device) -> Result {
/// for number in 1..=device.ports() {
///     let port = device.port(number)?;
///     pr_info!("{} port {}: active {}\n", device.name(), number, port.active);
/// }
/// // Without that no memory can be registered by work requests.
/// if !device.limits().mem_mgt_extensions {
///     return Err(EOPNOTSUPP);
/// }
/// // A queue pair for each interrupt. Draining it takes one of its work requests.
/// let queues = device.limits().num_comp_vectors;
/// let receives = device.limits().max_qp_wr.saturating_sub(1).min(128);
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is a device that stays registered until `gone` is completed.
/// - `gone` is completed by `drop()` and by nothing else.
#[pin_data(PinnedDrop)]
pub(crate) struct Device {
    raw: NonNull<bindings::ib_device>,
    owner: Owner,
    release: ReleaseHandle,
    limits: Limits,
    virt_dma: bool,
    iwarp: bool,
    quirks: Quirks,
    /// 1 if it tells of the last receive of a queue pair, as far as is known; else 0.
    tells_last_receive: Atomic<u32>,
    #[pin]
    users: Mutex<Users>,
    remnants: Arc<Remnants>,
    gone: Arc<Completion>,
}

// SAFETY: The methods of `ib_device` that are used may be called from any thread.
unsafe impl Send for Device {}

// SAFETY: As above, and concurrently; the fields do not change.
unsafe impl Sync for Device {}

impl Device {
    /// Makes what a client of `owner`, which was registered with `release`, has of a device.
    ///
    /// # Safety
    ///
    /// `raw` must be a device that stays registered until the completion that [`Self::gone`]
    /// returns is complete.
    pub(super) unsafe fn new(
        raw: NonNull<bindings::ib_device>,
        owner: Owner,
        release: &ReleaseHandle,
    ) -> Result<Arc<Self>> {
        // SAFETY: The caller gives a registered device, whose attributes do not change.
        let attrs = unsafe { &*core::ptr::addr_of!((*raw.as_ptr()).attrs) };
        // SAFETY: The caller gives a registered device.
        let dma_max_mapping_size = unsafe { bindings::farblk_dma_max_mapping_size(raw.as_ptr()) };
        // SAFETY: As above.
        let dma_max_seg_size = unsafe { bindings::ib_dma_max_seg_size(raw.as_ptr()) };
        let limits = Limits {
            max_qp_wr: limit(attrs.max_qp_wr),
            max_send_sge: limit(attrs.max_send_sge),
            max_sge_rd: limit(attrs.max_sge_rd),
            max_recv_sge: limit(attrs.max_recv_sge),
            max_srq_wr: limit(attrs.max_srq_wr),
            max_srq_sge: limit(attrs.max_srq_sge),
            max_cqe: limit(attrs.max_cqe),
            max_fast_reg_page_list_len: attrs.max_fast_reg_page_list_len,
            max_qp_rd_atom: limit(attrs.max_qp_rd_atom),
            max_qp_init_rd_atom: limit(attrs.max_qp_init_rd_atom),
            // SAFETY: The caller gives a registered device.
            num_comp_vectors: limit(unsafe { (*raw.as_ptr()).num_comp_vectors }),
            dma_max_seg_size: u32::try_from(dma_max_mapping_size)
                .unwrap_or(u32::MAX)
                .min(dma_max_seg_size),
            dma_max_mapping_size,
            mem_mgt_extensions: attrs.device_cap_flags
                & bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64
                != 0,
        };
        // SAFETY: As above.
        let virt_dma = unsafe { bindings::ib_uses_virt_dma(raw.as_ptr()) };
        // All ports of a device have the same transport, as far as iWARP is concerned.
        // SAFETY: As above. Ports of an adapter begin at 1.
        let iwarp = unsafe { bindings::rdma_protocol_iwarp(raw.as_ptr(), 1) };
        // SAFETY: As above.
        let quirks = unsafe { Quirks::of(raw.as_ptr()) };
        let remnants = Remnants::new(owner)?;
        let gone = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        // INVARIANT: The caller promises that the device stays.
        Arc::pin_init(
            try_pin_init!(Self {
                raw,
                owner,
                release: release.clone(),
                limits,
                virt_dma,
                iwarp,
                quirks,
                tells_last_receive: Atomic::new((!quirks.hides_last_receive()).into()),
                users <- new_mutex!(Users {
                    list: KVec::new(),
                    removed: false,
                }),
                remnants,
                gone,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Adds a user, which receives one event when the device is being removed. Fails with `ENODEV`
    /// if it already is, and with `ENOMEM`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn add_user(&self, user: Arc<dyn DeviceUser>) -> Result {
        let mut users = self.users.lock();
        if users.removed {
            return Err(ENODEV);
        }
        // A connection that is made again waits for the lock, and I/O for that.
        without_io(|| users.list.push(user, GFP_KERNEL))?;
        Ok(())
    }

    /// Undoes [`Self::add_user`]. The user may still receive the event if the device is just being
    /// removed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn remove_user<T: DeviceUser>(&self, user: &Arc<T>) {
        let user = Arc::as_ptr(user);
        let mut users = self.users.lock();
        let mut list = users.list.iter();
        if let Some(index) = list.position(|other| core::ptr::addr_eq(Arc::as_ptr(other), user)) {
            let user = users.list.remove(index);
            drop(users);
            drop(user);
        }
    }

    /// Sends the event of the removal to all users, and lets no new ones be added.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn tell_users(&self) {
        loop {
            let mut users = self.users.lock();
            users.removed = true;
            let Some(user) = users.list.pop() else {
                return;
            };
            drop(users);
            user.device_removed();
        }
    }

    /// The C device, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.as_ptr()
    }

    /// Returns the handle of the queue that drops what may not be dropped where it is.
    pub(super) fn release(&self) -> &ReleaseHandle {
        &self.release
    }

    /// Returns the module that owns what is created on the device.
    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns what the device has refused to destroy.
    pub(super) fn remnants(&self) -> &Arc<Remnants> {
        &self.remnants
    }

    /// Returns the completion that is done when the last reference to the device was dropped.
    pub(super) fn gone(&self) -> Arc<Completion> {
        self.gone.clone()
    }

    /// Returns true if the device is a software one: when the CPU is busy, it is late.
    pub(crate) fn is_software(&self) -> bool {
        self.virt_dma
    }

    /// Returns true if DMA addresses are virtual addresses: then nothing needs to be unmapped or
    /// synced.
    #[inline]
    pub(super) fn uses_virt_dma(&self) -> bool {
        self.virt_dma
    }

    /// Returns true if what is mapped to `addr` has to be synced, as long as it is mapped.
    ///
    /// # Safety
    ///
    /// `addr` must be mapped for the device.
    pub(super) unsafe fn needs_sync(&self, addr: u64) -> bool {
        // SAFETY: By the type invariants the device is registered; the caller gives the rest.
        unsafe { bindings::farblk_dma_needs_sync(self.as_raw(), addr) }
    }

    /// Returns true if the device sees a copy of the memory that was mapped to `addr`, a bounce
    /// buffer, which only a sync or the end of the mapping makes the same again.
    ///
    /// # Safety
    ///
    /// `addr` must be mapped for the device.
    pub(super) unsafe fn sees_copy(&self, addr: u64) -> bool {
        // SAFETY: By the type invariants the device is registered; the caller gives the rest.
        unsafe { bindings::farblk_dma_is_bounced(self.as_raw(), addr) }
    }

    /// Returns true if memory that is mapped for the device need not keep its offset in its page,
    /// as it may be bounced: then only whole pages can be registered. Any context.
    pub(crate) fn loses_offsets(&self) -> bool {
        // SAFETY: By the type invariants the device is registered.
        unsafe { bindings::farblk_dma_loses_offsets(self.as_raw()) }
    }

    /// Returns what the device does against the specification.
    pub(crate) fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Returns true if the device has shared receive queues. A driver may report sizes for them and
    /// not have them, so this looks for the functions, too.
    pub(crate) fn has_srq(&self) -> bool {
        // SAFETY: By the type invariants the device is registered.
        let (ops, attrs) = unsafe { (&(*self.as_raw()).ops, &(*self.as_raw()).attrs) };
        let is_there = ops.create_srq.is_some() && ops.destroy_srq.is_some();
        is_there
            && ops.post_srq_recv.is_some()
            && limit(attrs.max_srq) > 0
            && limit(attrs.max_srq_wr) > 0
            && limit(attrs.max_srq_sge) > 0
    }

    /// Returns true if the device tells when a queue pair that has failed has used up its last
    /// receive of a shared receive queue (`IB_EVENT_QP_LAST_WQE_REACHED`), as far as is known: the
    /// specification wants it to, but not all do. Any context.
    pub(crate) fn tells_last_receive(&self) -> bool {
        self.tells_last_receive.load(Relaxed) != 0
    }

    /// Notes whether the device has told of the last receive of a queue pair. Any context.
    pub(super) fn set_tells_last_receive(&self, tells: bool) {
        let before = self.tells_last_receive.xchg(tells.into(), Relaxed) != 0;
        if before && !tells {
            pr_info!(
                "{} does not tell of the last receive of a queue pair; these are destroyed \
                 without it\n",
                self.name()
            );
        }
    }

    /// Returns true if the device can send a message that invalidates a key of the peer, and takes
    /// such messages. Any context.
    pub(crate) fn takes_invalidations(&self) -> bool {
        self.limits.mem_mgt_extensions
    }

    /// Returns true if an RDMA READ needs a memory region for where the data go, which the peer may
    /// write to: [`Qp::rdma`](super::qp::Qp::rdma) uses that of its slot.
    pub(crate) fn reads_need_regions(&self) -> bool {
        self.iwarp
    }

    /// Returns how the device does atomic operations of 8 bytes on the memory of this host for its
    /// peers; `None` if it does none, or as with iWARP no connection lets peers do them. Any
    /// context.
    pub(crate) fn atomics(&self) -> Option<Atomicity> {
        // SAFETY: By the type invariants the device is registered.
        let cap = unsafe { (*self.as_raw()).attrs.atomic_cap };
        Atomicity::of(cap).filter(|_| !self.iwarp)
    }

    /// Returns the same of masked atomic operations. Any context.
    pub(crate) fn masked_atomics(&self) -> Option<Atomicity> {
        // SAFETY: By the type invariants the device is registered.
        let cap = unsafe { (*self.as_raw()).attrs.masked_atomic_cap };
        Atomicity::of(cap).filter(|_| !self.iwarp)
    }

    /// Returns true if the device can be asked to do atomic operations on memory of a peer, or
    /// `masked` ones. Any context.
    pub(crate) fn posts_atomics(&self, masked: bool) -> bool {
        match masked {
            true => self.masked_atomics().is_some() && !self.quirks.posts_no_masked_atomics(),
            false => self.atomics().is_some() && !self.quirks.posts_no_atomics(),
        }
    }

    /// Returns true if memory regions can have pages of `size` bytes.
    pub(super) fn has_page_size(&self, size: usize) -> bool {
        // SAFETY: By the type invariants the device is registered.
        let cap = unsafe { (*self.as_raw()).attrs.page_size_cap };
        cap & size as u64 != 0 || self.quirks.any_page_size()
    }

    /// Returns the page size of memory regions, in bytes: the kernel's, or 4 KiB if the device has
    /// only that of the two. Any context.
    pub(crate) fn region_page_size(&self) -> u32 {
        let own = self.has_page_size(PAGE_SIZE) || !self.has_page_size(SMALL_PAGE);
        // CAST: Both are small.
        match own {
            true => PAGE_SIZE as u32,
            false => SMALL_PAGE as u32,
        }
    }

    /// Returns the base-two logarithm of the bytes that a memory region can have whose memory lies
    /// in chunks of `chunk` bytes, a power of two, at multiples of that. Any context.
    pub(crate) fn region_shift(&self, chunk: usize) -> u32 {
        let limits = self.limits();
        // An entry of the list of what was mapped is no longer than that.
        // CAST: A u32 fits a usize on every platform with RDMA.
        let mut page = chunk.min((limits.dma_max_seg_size as usize / 2 + 1).next_power_of_two());
        // CAST: As above.
        let smallest = self.region_page_size() as usize;
        while page > smallest && !self.has_page_size(page) {
            page /= 2;
        }
        let pages = limits.max_fast_reg_page_list_len.min(REGION_PAGES_MAX);
        let shift = page.max(smallest).ilog2() + pages.max(1).ilog2();
        match self.uses_virt_dma() {
            true => shift.min(SOFTWARE_REGION_SHIFT),
            false => shift,
        }
    }

    /// Returns the name of the device. Any context.
    pub(crate) fn name(&self) -> Name {
        let mut name = Name {
            bytes: [0; Name::MAX],
            len: 0,
        };
        // SAFETY: By the type invariants the device is registered.
        let source = unsafe { core::ptr::addr_of!((*self.as_raw()).name) }.cast::<u8>();
        for (index, byte) in name.bytes.iter_mut().enumerate() {
            // SAFETY: `name` is an array of `MAX` bytes. A rename may write it at the same time,
            // which yields a mixed name; reads of single bytes do not tear.
            *byte = unsafe { source.add(index).read_volatile() };
            if *byte == 0 {
                break;
            }
            name.len = index + 1;
        }
        name
    }

    /// Returns the limits of the device.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the NUMA node that is closest to the device, which is online.
    pub(crate) fn numa_node(&self) -> NumaNode {
        // SAFETY: By the type invariants the device is registered.
        let node = unsafe { bindings::farblk_ibdev_to_node(self.as_raw()) };
        NumaNode::new(node).unwrap_or(NumaNode::NO_NODE)
    }
}

#[pinned_drop]
impl PinnedDrop for Device {
    fn drop(self: Pin<&mut Self>) {
        self.gone.complete_all();
    }
}
