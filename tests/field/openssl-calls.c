/* Hashes, encryption and signatures by OpenSSL's library: each hash compared, each block decrypted by its own key stream, each signature verified. */
#include "clocked.h"
#include <string.h>

typedef void *any;
const void *EVP_sha256(void);
const void *EVP_aes_256_ctr(void);
int EVP_Digest(const void *, size_t, unsigned char *, unsigned *, const void *, any);
any EVP_CIPHER_CTX_new(void);
int EVP_EncryptInit_ex(any, const void *, any, const unsigned char *, const unsigned char *);
int EVP_EncryptUpdate(any, unsigned char *, int *, const unsigned char *, int);
any EVP_PKEY_Q_keygen(any, const char *, const char *, ...);
any EVP_PKEY_CTX_new(any, any);
int EVP_PKEY_sign_init(any);
int EVP_PKEY_sign(any, unsigned char *, size_t *, const unsigned char *, size_t);
int EVP_PKEY_verify_init(any);
int EVP_PKEY_verify(any, const unsigned char *, size_t, const unsigned char *, size_t);

enum { EMPTY, DIGEST, UPDATE, SIGN, VERIFY };
enum { BUFFERS = 16, SMALL = 1024, BLOCK = 4096 };

int main(void) {
    static unsigned char data[BUFFERS][SMALL], digests[BUFFERS][32], plain[BLOCK], coded[BLOCK], again[BLOCK];
    unsigned char key[32] = {7}, digest[32], signature[512];
    open_slots();
    signal(SIGTERM, on_term);
    for (int i = 0; i < BUFFERS; i++) {
        for (int j = 0; j < SMALL; j++)
            data[i][j] = (unsigned char)mixed((uint64_t)(i * SMALL + j));
        if (!EVP_Digest(data[i], SMALL, digests[i], NULL, EVP_sha256(), NULL))
            fail("no digest");
    }
    for (int j = 0; j < BLOCK; j++)
        plain[j] = (unsigned char)mixed((uint64_t)j);
    any to = EVP_CIPHER_CTX_new(), back = EVP_CIPHER_CTX_new();
    any rsa = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    any signer = EVP_PKEY_CTX_new(rsa, NULL), verifier = EVP_PKEY_CTX_new(rsa, NULL);
    if (!EVP_EncryptInit_ex(to, EVP_aes_256_ctr(), NULL, key, key) || !EVP_EncryptInit_ex(back, EVP_aes_256_ctr(), NULL, key, key))
        fail("no cipher");
    if (EVP_PKEY_sign_init(signer) <= 0 || EVP_PKEY_verify_init(verifier) <= 0)
        fail("no key");
    puts("begun");
    fflush(stdout);
    for (uint64_t step = 0; !stopped; step++) {
        int length = 0;
        rest();
        clock_itself();
        for (int i = 0; i < BUFFERS; i++) {
            if (!CLOCKED(DIGEST, EVP_Digest(data[i], SMALL, digest, NULL, EVP_sha256(), NULL)) || memcmp(digest, digests[i], 32) != 0)
                fail("a digest");
        }
        for (int i = 0; i < BUFFERS; i++) {
            if (!CLOCKED(UPDATE, EVP_EncryptUpdate(to, coded, &length, plain, BLOCK)) || length != BLOCK)
                fail("an encryption");
            if (!CLOCKED(UPDATE, EVP_EncryptUpdate(back, again, &length, coded, BLOCK)) || memcmp(plain, again, BLOCK) != 0)
                fail("a decryption");
        }
        if (step % 16 == 0) {
            size_t size = sizeof signature;
            if (CLOCKED(SIGN, EVP_PKEY_sign(signer, signature, &size, digest, 32)) <= 0)
                fail("a signature");
            if (CLOCKED(VERIFY, EVP_PKEY_verify(verifier, signature, size, digest, 32)) != 1)
                fail("a verification");
        }
    }
    return 0;
}
