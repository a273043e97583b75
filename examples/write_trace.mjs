// A trace written from Node: the format is docs/trace-format.md.
import { mkdirSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** `states`: [name, shape, Float32Array] in order of execution. */
export function writeTrace(folder, states) {
  const header = {};
  let at = 0;
  for (const [name, shape, values] of states) {
    header[name] = { dtype: "F32", shape, data_offsets: [at, at + values.byteLength] };
    at += values.byteLength;
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  const data = states.map(([, , v]) => Buffer.from(v.buffer, v.byteOffset, v.byteLength));
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "states.safetensors"), Buffer.concat([length, text, ...data]));
  const manifest = { schema_version: 1, points: states.map(([name]) => ({ name })) };
  writeFileSync(join(folder, "manifest.tmp"), JSON.stringify(manifest));
  renameSync(join(folder, "manifest.tmp"), join(folder, "manifest.json"));
}
