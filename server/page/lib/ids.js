/** Token ids and states as short text for addresses: base64url, deflated where it pays. */

/** @param {Uint8Array} bytes */
function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** @param {string} text */
function fromBase64(text) {
  const raw = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

/**
 * Ids as variable-length integers, seven bits a byte.
 * @param {number[]} ids
 */
export function packIds(ids) {
  /** @type {number[]} */
  const bytes = [];
  for (let id of ids) {
    while (id > 127) {
      bytes.push((id & 127) | 128);
      id >>>= 7;
    }
    bytes.push(id);
  }
  return toBase64(Uint8Array.from(bytes));
}

/** @param {string} text */
export function unpackIds(text) {
  /** @type {number[]} */
  const ids = [];
  let id = 0;
  let shift = 0;
  for (const byte of fromBase64(text)) {
    id |= (byte & 127) << shift;
    shift += 7;
    if (byte < 128) {
      ids.push(id);
      id = shift = 0;
    }
  }
  return ids;
}

/**
 * @param {Uint8Array} bytes
 * @param {"compress" | "decompress"} way
 */
async function deflate(bytes, way) {
  const through = way === "compress"
    ? new CompressionStream("deflate-raw") : new DecompressionStream("deflate-raw");
  const stream = new Blob([bytes]).stream().pipeThrough(through);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {unknown} state */
export async function packState(state) {
  const plain = new TextEncoder().encode(JSON.stringify(state));
  return toBase64(await deflate(plain, "compress"));
}

/** @param {string} text */
export async function unpackState(text) {
  return JSON.parse(new TextDecoder().decode(await deflate(fromBase64(text), "decompress")));
}
