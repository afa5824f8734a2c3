// Answers questions, one a line, with Node's own modules. A question checks itself where it can.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const readline = require('readline');
const zlib = require('zlib');

function documents(seed) {
    let state = (seed * 40503 + 7) % 2147483648;
    const rows = [];
    for (let number = 0; number < 200; number++) {
        state = (state * 48271) % 2147483647;
        rows.push({id: number, name: 'n' + state % 997, values: [1, 2, 3, 5, 8].map(k => state % (k * 17))});
    }
    return rows;
}

function raising(depth) {
    if (depth === 0) throw new RangeError('deep');
    return raising(depth - 1) + 1;
}

async function answer(seed) {
    const rows = documents(seed);
    const text = JSON.stringify(rows);
    if (JSON.stringify(JSON.parse(text)) !== text) return 'wrong: JSON does not read back';
    const packed = zlib.deflateSync(text);
    if (zlib.inflateSync(packed).toString() !== text) return 'wrong: zlib does not read back';
    const file = `data-${process.pid}`;
    await fs.promises.writeFile(file, text);
    if ((await fs.promises.readFile(file)).toString() !== text) return 'wrong: the file does not read back';
    const sorted = rows.map(row => row.name).sort();
    for (let i = 1; i < sorted.length; i++) if (sorted[i - 1] > sorted[i]) return 'wrong: the order';
    let caught = 0;
    for (let depth = 0; depth < 20; depth++) {
        try { raising(depth); } catch (error) { caught += error instanceof RangeError; }
    }
    if (caught !== 20) return `wrong: ${caught} of 20 exceptions were caught`;
    let sum = 0;
    for (let i = 0; i < 200000; i++) sum = (sum + i * (seed + 1)) % 1000003;
    const key = Buffer.alloc(16, seed);
    const cipher = crypto.createCipheriv('aes-128-cbc', key, key);
    const secret = Buffer.concat([cipher.update(text), cipher.final()]);
    const decipher = crypto.createDecipheriv('aes-128-cbc', key, key);
    if (decipher.update(secret).toString() + decipher.final().toString() !== text) return 'wrong: the cipher';
    return 'ok ' + crypto.createHash('sha256').update(text).update(sorted.join()).update(String(sum)).digest('hex');
}

let before = Promise.resolve();
readline.createInterface({input: process.stdin}).on('line', line => {
    before = before.then(() => answer(Number(line))).then(said => process.stdout.write(said + '\n'));
});
process.stdout.write('ready\n');
