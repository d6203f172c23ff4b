//! What a connection of the test client goes over: a socket, or TLS on one.

use std::fs;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sluice_xdr::nfs3::{NFS_V3, NFS3_PROGRAM};
use tempfile::TempDir;

use crate::client::LAST;

/// Bytes taken from the kernel at once. The library asks for 4 KiB, and the client shall be lean.
const TAKE: usize = 128 << 10;

/// A credential's flavour, and what an answer that grants TLS has for a verifier. RFC 9289 §4.1.
const AUTH_TLS: u32 = 7;
const STARTTLS: &[u8; 8] = b"STARTTLS";

/// A certificate for a server on this host, which is its own authority.
#[derive(Debug)]
pub(super) struct Certificate {
    file: PathBuf,
    key: PathBuf,
    /// Of clients that believe it.
    pub(super) clients: Arc<ClientConfig>,
    /// The server looks at them now and then.
    _folder: TempDir,
}

impl Certificate {
    /// A new one, in files.
    pub(super) fn new(address: IpAddr) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        let certificate = params.self_signed(&own)?;
        let [file, key] = ["certificate.pem", "certificate.key"].map(|name| folder.path().join(name));
        fs::write(&file, certificate.pem())?;
        fs::write(&key, own.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate.der().to_vec()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut clients = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        clients.alpn_protocols = vec![b"sunrpc".to_vec()];
        Ok(Self { file, key, clients: Arc::new(clients), _folder: folder })
    }

    /// Of a server that shows it. Who prepares the files need not speak TLS.
    pub(super) fn options(&self) -> Result<[&str; 4]> {
        let text = "the temporary directory is not text";
        let (file, key) = (self.file.to_str().context(text)?, self.key.to_str().context(text)?);
        Ok(["--tls-certificate", file, "--tls-key", key])
    }
}

#[derive(Debug)]
pub(super) enum Line {
    Clear(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, Below>>),
}

/// A socket from which more is taken at once than is asked for.
#[derive(Debug)]
pub(super) struct Below(BufReader<TcpStream>);

impl Read for Below {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Below {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line {
    /// Asks for TLS as a client does, and speaks it.
    pub(super) fn under_tls(mut stream: TcpStream, clients: &Arc<ClientConfig>) -> Result<Self> {
        let call = [LAST | 40, 1, 0, 2, NFS3_PROGRAM, NFS_V3, 0, AUTH_TLS, 0, 0, 0];
        stream.write_all(&call.map(u32::to_be_bytes).concat())?;
        // Mark, xid, REPLY, accepted, AUTH_NONE with eight bytes of it, SUCCESS.
        let mut answer = [0; 36];
        stream.read_exact(&mut answer).context("the server does not answer who asks for TLS")?;
        ensure!(answer.get(24..32) == Some(STARTTLS), "the server does not offer TLS");
        let name = stream.peer_addr()?.ip().into();
        let session = ClientConnection::new(Arc::clone(clients), name)?;
        let mut line = StreamOwned::new(session, Below(BufReader::with_capacity(TAKE, stream)));
        while line.conn.is_handshaking() {
            line.conn.complete_io(&mut line.sock).context("TLS handshake")?;
        }
        Ok(Self::Tls(Box::new(line)))
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Clear(stream) => stream.write_vectored(bytes),
            Self::Tls(stream) => stream.write_vectored(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Clear(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
