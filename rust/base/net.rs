// SPDX-License-Identifier: GPL-2.0

//! Network namespaces, socket addresses and the name of this host.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)\
//! C header: [`include/uapi/linux/socket.h`](srctree/include/uapi/linux/socket.h)

// UPSTREAM: upstream/tree/base/net.rs takes the place of this file, with patch 0013 of
// upstream/rust.

#![allow(unsafe_code)]

use core::{
    net::{
        Ipv4Addr,
        Ipv6Addr,
        SocketAddr,
        SocketAddrV6, //
    },
    ptr::NonNull,
};

use kernel::{
    prelude::*,
    str::CString, //
};

use crate::bindings;

/// A counted reference to a network namespace, which keeps the namespace.
///
/// # Examples
///
/// ```
/// # use crate::{base::net::Net, rdma::{client::Devices, cm::{CmEvents, CmId}}};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, events: Arc<dyn CmEvents>) -> Result {
/// // Of the task that configures the connection. A work item, which connects later, has another.
/// let net = Net::current();
/// let id: Arc<CmId> = CmId::new(devices, &net, events)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The pointer is valid and this value owns one reference count of what it points at.
pub(crate) struct Net(NonNull<bindings::net>);

// SAFETY: The reference count of a `struct net` may be changed by any task, in any context.
unsafe impl Send for Net {}
// SAFETY: `&Net` gives nothing but the pointer and more references.
unsafe impl Sync for Net {}

impl Net {
    /// Returns the network namespace of the current task; the initial one if the task is exiting.
    /// Any context.
    pub(crate) fn current() -> Self {
        // SAFETY: No requirements; `current` is valid in every context.
        let net = unsafe { bindings::get_current_net() };
        // INVARIANT: The helper returned a reference that is ours. SAFETY: It is not null: a task
        // with an `nsproxy` has a network namespace, and else it is `init_net`.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    /// Returns the C object, which is valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Clone for Net {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariants the pointer is valid.
        unsafe { bindings::get_net(self.as_ptr()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: By the type invariants this value owns a reference, which it gives up here.
        unsafe { bindings::put_net(self.as_ptr()) }
    }
}

const _: () = {
    assert!(size_of::<bindings::sockaddr_in>() <= size_of::<bindings::__kernel_sockaddr_storage>());
    assert!(
        size_of::<bindings::sockaddr_in6>() <= size_of::<bindings::__kernel_sockaddr_storage>()
    );
};

/// An IP address with a port in the form of C: a `struct sockaddr_storage`.
///
/// # Examples
///
/// ```
/// # use crate::base::net::SockaddrStorage;
/// # use core::net::SocketAddr;
/// # fn example(address: SocketAddr) -> bool {
/// let storage = SockaddrStorage::from(address);
/// storage.socket_addr() == Some(address)
/// # }
/// ```
///
/// # Invariants
///
/// Every byte is initialised.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct SockaddrStorage(bindings::__kernel_sockaddr_storage);

impl SockaddrStorage {
    /// Creates a reference to an address that C has.
    ///
    /// # Safety
    ///
    /// For the duration of `'a`, `storage` must be valid for reads, all of it be initialised, and
    /// nobody change it.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(
        storage: *const bindings::__kernel_sockaddr_storage,
    ) -> &'a Self {
        // SAFETY: By the safety requirements, as the type is transparent.
        unsafe { &*storage.cast() }
    }

    /// Returns the address in the form that C takes, which is valid while `self` is borrowed.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const bindings::sockaddr {
        core::ptr::from_ref(&self.0).cast()
    }

    /// Returns the address, or `None` if it is no IP address. That of IPv6 has its scope.
    pub(crate) fn socket_addr(&self) -> Option<SocketAddr> {
        // CAST: The families are small numbers.
        const INET: bindings::__kernel_sa_family_t =
            bindings::AF_INET as bindings::__kernel_sa_family_t;
        const INET6: bindings::__kernel_sa_family_t =
            bindings::AF_INET6 as bindings::__kernel_sa_family_t;

        let ptr = self.as_ptr();
        // SAFETY: Each kind of address begins with the family.
        match unsafe { (*ptr).sa_family } {
            INET => {
                // SAFETY: It is one of this kind, and by the type invariants initialised.
                let sin = unsafe { &*ptr.cast::<bindings::sockaddr_in>() };
                let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), u16::from_be(sin.sin_port)))
            }
            INET6 => {
                // SAFETY: As above.
                let sin6 = unsafe { &*ptr.cast::<bindings::sockaddr_in6>() };
                // SAFETY: The union has 16 bytes whichever way they are looked at.
                let ip = Ipv6Addr::from(unsafe { sin6.sin6_addr.in6_u.u6_addr8 });
                Some(
                    SocketAddrV6::new(
                        ip,
                        u16::from_be(sin6.sin6_port),
                        u32::from_be(sin6.sin6_flowinfo),
                        sin6.sin6_scope_id,
                    )
                    .into(),
                )
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for SockaddrStorage {
    fn from(addr: SocketAddr) -> Self {
        // INVARIANT: All bytes are zeroes, and only whole fields are written over them.
        let mut storage: bindings::__kernel_sockaddr_storage = pin_init::zeroed();
        let ptr = core::ptr::from_mut(&mut storage);
        match addr {
            SocketAddr::V4(v4) => {
                // SAFETY: It fits, as asserted above; `ptr` is aligned for any kind of address.
                let sin = unsafe { &mut *ptr.cast::<bindings::sockaddr_in>() };
                sin.sin_family = bindings::AF_INET as bindings::__kernel_sa_family_t;
                sin.sin_port = v4.port().to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                // SAFETY: As above, for `sockaddr_in6`.
                let sin6 = unsafe { &mut *ptr.cast::<bindings::sockaddr_in6>() };
                sin6.sin6_family = bindings::AF_INET6 as bindings::__kernel_sa_family_t;
                sin6.sin6_port = v6.port().to_be();
                sin6.sin6_flowinfo = v6.flowinfo().to_be();
                sin6.sin6_addr.in6_u.u6_addr8 = v6.ip().octets();
                sin6.sin6_scope_id = v6.scope_id();
            }
        }
        Self(storage)
    }
}

/// Returns the name of this host in the UTS namespace of the current task. Fails with `ENOMEM`. May
/// sleep.
pub(crate) fn nodename() -> Result<CString> {
    // `__NEW_UTS_LEN` and the NUL.
    let mut buffer = [0u8; 65];
    // SAFETY: `buffer` is valid for writes of its length, which is not zero.
    unsafe { bindings::current_nodename(buffer.as_mut_ptr().cast(), buffer.len()) };
    let name = CStr::from_bytes_until_nul(&buffer).map_err(|_| EINVAL)?;
    Ok(CString::try_from(name)?)
}
