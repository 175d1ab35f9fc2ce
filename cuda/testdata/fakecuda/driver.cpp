// A CUDA driver library without a GPU, for the tests of package cuda. It runs the sources of the kernels on the CPU, and is stricter than
// a real driver: work on a stream is put off until somebody waits for it, every address and argument is checked, and a call on a thread
// without a context fails. What a test wants to go wrong it asks for through the fake_ functions.
#include "device.h"

#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "../../kernels/nvfp4.cuh"
namespace absmaxKernel {
#include "../../kernels/absmax.cu"
}
namespace tablesKernel {
#include "../../kernels/tables.cu"
}
namespace quantizeKernel {
#include "../../kernels/quantize.cu"
}
namespace dequantizeKernel {
#include "../../kernels/dequantize.cu"
}
namespace compareKernel {
#include "../../kernels/compare.cu"
}
namespace errorsKernel {
#include "../../kernels/errors.cu"
}

#define EXPORT extern "C" __attribute__((visibility("default")))

enum Result { success = 0, invalidValue = 1, outOfMemory = 2, notInitialized = 3, noDevice = 100, invalidContext = 201, invalidPTX = 218, notFound = 500, illegalAddress = 700 };

typedef std::lock_guard<std::mutex> Guard;

struct Stream {
    int device;
    std::mutex adding;
    std::deque<std::function<int()>> work;
    u64 put = 0, done = 0;
};

struct Event {
    Stream *stream = nullptr;
    u64 position = 0;
};

static std::mutex lock;
static std::map<u64, u64> deviceMemory, hostMemory; // start -> bytes
static u64 devicePeak, deviceLimit;
static int devices, major, misuses, retained;
static char firstMisuse[256];
static bool lie;
static std::string failing;
static int failAfter, failCode, dead[8];
static std::atomic<int> launches[8];
static thread_local int current; // device + 1

static int misuse(int result, const char *what) {
    if (misuses++ == 0) snprintf(firstMisuse, sizeof firstMisuse, "%s", what);
    return result;
}

static u64 live(const std::map<u64, u64> &memory) {
    u64 n = 0;
    for (auto &m : memory) n += m.second;
    return n;
}

// inside tells whether n bytes at p lie in one live allocation.
static bool inside(const std::map<u64, u64> &memory, u64 p, u64 n) {
    Guard g(lock);
    auto m = memory.upper_bound(p);
    if (m == memory.begin()) return false;
    --m;
    return p + n <= m->first + m->second;
}

// The common beginning of calls: the failure that a test asked for, a device that is dead, a thread without a context.
static int begin(const char *name, bool needsContext) {
    Guard g(lock);
    if (failing == name && failAfter-- == 0) {
        failing = "";
        if (failCode >= 700 && current) dead[current - 1] = failCode; // as after a kernel that failed
        return failCode;
    }
    if (!needsContext) return success;
    if (!current) return misuse(invalidContext, name);
    return dead[current - 1];
}
#define BEGIN(needsContext)                        \
    if (int r = begin(__func__, needsContext)) return r

EXPORT void fake_reset(int deviceCount, int capability) {
    deviceMemory.clear();
    hostMemory.clear();
    devicePeak = 0;
    deviceLimit = 16ull << 30;
    devices = deviceCount;
    major = capability;
    misuses = retained = 0;
    firstMisuse[0] = 0;
    lie = false;
    failing = "";
    for (int i = 0; i < 8; i++) dead[i] = launches[i] = 0;
}
EXPORT void fake_fail(const char *name, int after, int code) {
    Guard g(lock);
    failing = name;
    failAfter = after;
    failCode = code;
}
EXPORT void fake_lie() { lie = true; }
EXPORT u64 fake_device_peak() { return devicePeak; }
EXPORT u64 fake_device_live() { return live(deviceMemory); }
EXPORT u64 fake_host_live() { return live(hostMemory); }
EXPORT u64 fake_retained() { return retained; }
EXPORT u64 fake_launches(int device) { return launches[device]; }
EXPORT const char *fake_misuse() { return firstMisuse; }

EXPORT int cuInit(unsigned flags) {
    BEGIN(false);
    return flags ? misuse(invalidValue, "cuInit: flags") : success;
}
EXPORT int cuGetErrorName(int code, const char **name) {
    static const std::map<int, const char *> names = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"}, {218, "CUDA_ERROR_INVALID_PTX"}, {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    auto n = names.find(code);
    if (n == names.end()) return invalidValue;
    *name = n->second;
    return success;
}
EXPORT int cuGetErrorString(int code, const char **text) {
    *text = code == outOfMemory ? "out of memory" : code == illegalAddress ? "an illegal memory access was encountered" : "some meaning";
    return success;
}
EXPORT int cuDeviceGetCount(int *n) {
    BEGIN(false);
    *n = devices;
    return success;
}
EXPORT int cuDeviceGet(int *device, int ordinal) {
    BEGIN(false);
    *device = ordinal + 40; // a CUdevice is not its index
    return ordinal < devices ? success : invalidValue;
}
static bool known(int device) { return device >= 40 && device < 40 + devices; }
EXPORT int cuDeviceGetName(char *name, int length, int device) {
    BEGIN(false);
    if (!known(device)) return misuse(invalidValue, __func__);
    snprintf(name, length, "Fake GPU %d", device - 40);
    return success;
}
EXPORT int cuDeviceTotalMem_v2(u64 *bytes, int device) {
    BEGIN(false);
    *bytes = deviceLimit;
    return known(device) ? success : misuse(invalidValue, __func__);
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN(false);
    if (!known(device)) return misuse(invalidValue, __func__);
    switch (attribute) {
    case 16: *value = 1; return success; // multiprocessors
    case 75: *value = major; return success;
    case 76: *value = 0; return success;
    }
    return misuse(invalidValue, "cuDeviceGetAttribute: attribute");
}
EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    BEGIN(false);
    return known(device) && flags == 4 ? success : misuse(invalidValue, __func__);
}
EXPORT int cuDevicePrimaryCtxRetain(u64 *context, int device) {
    BEGIN(false);
    if (!known(device)) return misuse(invalidValue, __func__);
    *context = 1000 + device;
    retained++;
    return success;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN(false);
    retained--;
    return known(device) ? success : misuse(invalidValue, __func__);
}
EXPORT int cuCtxSetCurrent(u64 context) {
    BEGIN(false);
    if (!known(context - 1000)) return misuse(invalidContext, __func__);
    current = context - 1000 - 40 + 1;
    return success;
}

EXPORT int cuModuleLoadDataEx(std::string **module, const char *text, unsigned n, const int *options, void *const *values) {
    BEGIN(true);
    std::string ptx(text);
    auto at = ptx.find(".visible .entry ");
    if (ptx.find("\n.version 7.0\n.target sm_80\n") == std::string::npos || at == std::string::npos || n != 2 || options[0] != 5 || options[1] != 6)
        return misuse(invalidPTX, __func__);
    if (lie) {
        snprintf((char *)values[0], (size_t)values[1], "line 1; fatal : no such luck\n");
        return invalidPTX;
    }
    at += strlen(".visible .entry ");
    *module = new std::string(ptx.substr(at, ptx.find('(', at) - at));
    return success;
}
EXPORT int cuModuleUnload(std::string *module) {
    BEGIN(true);
    delete module;
    return success;
}
EXPORT int cuModuleGetFunction(const std::string **function, std::string *module, const char *name) {
    BEGIN(true);
    *function = module;
    return *module == name ? success : misuse(notFound, __func__);
}

EXPORT int cuMemAlloc_v2(u64 *p, u64 n) {
    BEGIN(true);
    Guard g(lock);
    if (n == 0 || live(deviceMemory) + n > deviceLimit) return outOfMemory;
    *p = (u64)aligned_alloc(256, (n + 255) / 256 * 256);
    memset((void *)*p, 0xaa, min<u64>(n, 4 << 20)); // not zeros; all of it would take the machine a gigabyte
    deviceMemory[*p] = n;
    devicePeak = max(devicePeak, live(deviceMemory));
    return success;
}
EXPORT int cuMemFree_v2(u64 p) {
    BEGIN(true);
    Guard g(lock);
    if (!deviceMemory.erase(p)) return misuse(invalidValue, __func__);
    free((void *)p);
    return success;
}
EXPORT int cuMemHostAlloc(u64 *p, u64 n, unsigned flags) {
    BEGIN(true);
    Guard g(lock);
    if (flags != 1) return misuse(invalidValue, __func__); // portable
    *p = (u64)aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    hostMemory[*p] = n;
    return success;
}
EXPORT int cuMemFreeHost(u64 p) {
    BEGIN(true);
    Guard g(lock);
    if (!hostMemory.erase(p)) return misuse(invalidValue, __func__);
    free((void *)p);
    return success;
}

EXPORT int cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN(true);
    *stream = new Stream;
    (*stream)->device = current - 1;
    return flags == 1 ? success : misuse(invalidValue, __func__); // non-blocking
}
EXPORT int cuStreamDestroy_v2(Stream *stream) {
    BEGIN(true);
    delete stream;
    return success;
}
// Streams belong to their context; using one under another device's context is an error.
static bool foreign(Stream *s) { return s->device != current - 1; }

static int put(Stream *stream, const char *name, std::function<int()> work) {
    if (foreign(stream)) return misuse(invalidValue, name);
    Guard g(stream->adding);
    stream->work.push_back(work);
    stream->put++;
    return success;
}

// drain does the work of a stream up to a position, and that of others where it has to wait for them.
static int drain(Stream *stream, u64 position) {
    static std::recursive_mutex running;
    std::lock_guard<std::recursive_mutex> g(running);
    while (stream->done < position) {
        std::function<int()> work;
        {
            Guard g(stream->adding);
            work = stream->work.front();
            stream->work.pop_front();
        }
        stream->done++;
        if (int r = work()) {
            Guard g(lock);
            return dead[current - 1] = r;
        }
    }
    return success;
}
EXPORT int cuStreamSynchronize(Stream *stream) {
    BEGIN(true);
    if (foreign(stream)) return misuse(invalidValue, __func__);
    return drain(stream, stream->put);
}
EXPORT int cuEventCreate(Event **event, unsigned) {
    BEGIN(true);
    *event = new Event;
    return success;
}
EXPORT int cuEventDestroy_v2(Event *event) {
    BEGIN(true);
    delete event;
    return success;
}
EXPORT int cuEventRecord(Event *event, Stream *stream) {
    BEGIN(true);
    if (foreign(stream)) return misuse(invalidValue, __func__);
    event->stream = stream;
    event->position = stream->put;
    return success;
}
EXPORT int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    BEGIN(true);
    if (!event->stream || flags) return misuse(invalidValue, __func__);
    Event then = *event; // it may be recorded again
    return put(stream, __func__, [=] { return drain(then.stream, then.position); });
}
EXPORT int cuEventSynchronize(Event *event) {
    BEGIN(true);
    if (!event->stream) return misuse(invalidValue, __func__);
    return drain(event->stream, event->position);
}
EXPORT int cuEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    BEGIN(true);
    *milliseconds = 1;
    return start->stream && end->stream ? success : misuse(invalidValue, __func__);
}

EXPORT int cuMemsetD8Async(u64 p, unsigned char value, u64 n, Stream *stream) {
    BEGIN(true);
    return put(stream, __func__, [=] {
        if (!inside(deviceMemory, p, n)) return misuse(illegalAddress, "cuMemsetD8Async");
        memset((void *)p, value, n);
        return (int)success;
    });
}
EXPORT int cuMemcpyHtoDAsync_v2(u64 to, const void *from, u64 n, Stream *stream) {
    BEGIN(true);
    return put(stream, __func__, [=] {
        if (!inside(deviceMemory, to, n)) return misuse(illegalAddress, "cuMemcpyHtoDAsync_v2");
        memcpy((void *)to, from, n);
        return (int)success;
    });
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, u64 from, u64 n, Stream *stream) {
    BEGIN(true);
    return put(stream, __func__, [=] {
        if (!inside(deviceMemory, from, n)) return misuse(illegalAddress, "cuMemcpyDtoHAsync_v2");
        memcpy(to, (void *)from, n);
        return (int)success;
    });
}
EXPORT int cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 n, Stream *stream) {
    BEGIN(true);
    return put(stream, __func__, [=] {
        if (!inside(deviceMemory, from, n) || !inside(deviceMemory, to, n)) return misuse(illegalAddress, "cuMemcpyDtoDAsync_v2");
        memcpy((void *)to, (void *)from, n);
        return (int)success;
    });
}
// device checks that n bytes at p are device memory, aligned as the kernel's type wants.
template <class T> static T *device(u64 p, u64 n, bool &good, u64 alignment = alignof(T)) {
    good = good && p % alignment == 0 && inside(deviceMemory, p, n);
    return (T *)p;
}

EXPORT int cuLaunchKernel(const std::string *function, unsigned blocks, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,
                          unsigned blockZ, unsigned shared, Stream *stream, void **arguments, void **extra) {
    BEGIN(true);
    if (blocks == 0 || gridY != 1 || gridZ != 1 || blockX != 256 || blockY != 1 || blockZ != 1 || shared != 0 || extra) return misuse(invalidValue, __func__);
    u64 a[10];
    for (int i = 0; i < 10; i++) memcpy(&a[i], arguments[i], 8); // a real driver copies the arguments now, too
    std::string name = *function;
    launches[current - 1]++;
    return put(stream, __func__, [=] {
        bool good = true;
        std::function<void()> body;
        if (name == "absmax") {
            auto bf16 = device<uint4>(a[0], a[1] * 32, good, 16);
            auto amax = device<u32>(a[2], 4, good);
            body = [=] { absmaxKernel::absmax(bf16, a[1], amax); };
        } else if (name == "tables") {
            auto amax = device<u32>(a[0], 4, good);
            auto global = device<float>(a[6], 4, good);
            auto bytes = device<u8>(a[7], 32768, good);
            auto thresholds = device<u32>(a[8], 4096, good, 16);
            good = good && blocks == 132;
            body = [=] {
                tablesKernel::tables(amax, a[1], a[2], a[3], a[4], __uint_as_float(a[5]), global, bytes, thresholds);
                if (lie) *global = 1;
            };
        } else if (name == "quantize") {
            auto bf16 = device<uint4>(a[0], a[1] * 32, good, 16);
            auto bytes = device<u8>(a[2], 32768, good);
            auto thresholds = device<uint4>(a[3], 4096, good, 16);
            auto packed = device<uint2>(a[4], a[1] * 8, good, 8);
            auto scales = device<u8>(a[5], a[1], good);
            body = [=] { quantizeKernel::quantize(bf16, a[1], bytes, thresholds, packed, scales); };
        } else if (name == "dequantize") {
            auto packed = device<u32>(a[0], a[2] * 8, good);
            auto scales = device<u8>(a[1], a[2], good);
            auto bf16 = device<uint4>(a[5], a[2] * 32, good, 16);
            body = [=] { dequantizeKernel::dequantize(packed, scales, a[2], __uint_as_float(a[3]), a[4], bf16); };
        } else if (name == "compare") {
            auto x = device<u8>(a[0], a[2], good, 16), y = device<u8>(a[1], a[2], good, 16);
            auto count = device<u64>(a[4], 8, good), first = device<u64>(a[5], 8, good);
            body = [=] { compareKernel::compare(x, y, a[2], a[3], count, first); };
        } else if (name == "errors") {
            auto bf16 = device<uint4>(a[0], a[3] * 32, good, 16);
            auto packed = device<uint2>(a[1], a[3] * 8, good, 8);
            auto scales = device<u8>(a[2], a[3], good);
            auto sums = device<errorsKernel::Sums>(a[6], blocks * 24ull, good);
            body = [=] { errorsKernel::errors(bf16, packed, scales, a[3], __uint_as_float(a[4]), a[5], sums); };
        } else {
            good = false;
        }
        if (!good) return misuse(illegalAddress, ("arguments of kernel " + name).c_str());
        launch(blocks, blockX, name != "tables" && name != "compare", body);
        return (int)success;
    });
}
