// SPDX-License-Identifier: GPL-2.0
//! Asks a host for a sign of life, with packets of a given size.
//!
//! A datagram to a UDP port where nobody listens is answered by the host's kernel, which the socket
//! reports as "connection refused". Datagrams that fit into the MTU of the interface must not be
//! split on the way, so one of the full size shows whether such packets arrive. This needs no
//! privilege.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The number of datagrams that may be lost.
const TRIES: u32 = 3;
/// The ports that are asked, one after the other: hardly anybody uses them. The first is that of
/// "discard".
const PORTS: [u16; 2] = [9, 33434];
/// The bytes of the headers of IPv4 and UDP.
const HEADERS: u32 = 28;
/// The largest packet that is sent. No interface for RDMA has a larger MTU.
const PACKET_MAX: u32 = 9216;

/// The answer of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Alive,
    /// Nothing came back.
    Silent,
    /// This host knows no way to it.
    NoRoute,
}

/// Asks a host. The packet has the size of the interface's MTU if one is given.
pub fn ask(ip: IpAddr, mtu: Option<u32>) -> Answer {
    for port in PORTS {
        match ask_port(ip, port, mtu) {
            Answer::Silent => {}
            answer => return answer,
        }
    }
    Answer::Silent
}

/// Asks one UDP port. A program that listens there does not answer.
pub fn ask_port(ip: IpAddr, port: u16, mtu: Option<u32>) -> Answer {
    match send(ip, port, mtu) {
        Ok(answer) => answer,
        Err(e) => match e.kind() {
            ErrorKind::ConnectionRefused => Answer::Alive,
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => Answer::NoRoute,
            // A route of the type blackhole; one of the type prohibit gives EACCES, and a firewall
            // EPERM.
            ErrorKind::InvalidInput => Answer::NoRoute,
            _ if Errno::from_io_error(&e) == Some(Errno::ACCESS) => Answer::NoRoute,
            _ => Answer::Silent,
        },
    }
}

fn send(ip: IpAddr, port: u16, mtu: Option<u32>) -> std::io::Result<Answer> {
    let socket = connected(ip, port)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let size = mtu.map_or(0, |mtu| mtu.min(PACKET_MAX).saturating_sub(HEADERS));
    let data = vec![0; size as usize];
    for _ in 0..TRIES {
        socket.send(&data)?;
        match socket.recv(&mut [0; 64]) {
            Ok(_) => return Ok(Answer::Alive),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Answer::Silent)
}

fn connected(ip: IpAddr, port: u16) -> std::io::Result<UdpSocket> {
    let any = match ip {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(SocketAddr::new(ip, port))?;
    Ok(socket)
}

/// Returns the address of this host from which packets go to `ip`.
pub fn source(ip: IpAddr) -> Option<IpAddr> {
    Some(connected(ip, PORTS[0]).ok()?.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_alive() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(source(ip), Some(ip));
        // Nobody listens on the port of a socket that is gone.
        let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.expect("a port").port();
        assert_eq!(ask_port(ip, port, None), Answer::Alive);
        assert_eq!(ask_port(ip, port, Some(9000)), Answer::Alive);
        let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let port = silent.local_addr().expect("an address").port();
        assert_eq!(ask_port(ip, port, None), Answer::Silent);
    }
}
